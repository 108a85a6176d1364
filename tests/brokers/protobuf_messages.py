"""A Protobuf message as protoc would generate it, made without protoc."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

Field = descriptor_pb2.FieldDescriptorProto
MOMENT = timestamp_pb2.DESCRIPTOR.name


def file_of(name: str, kind_of_n: int = Field.TYPE_INT64) -> descriptor_pb2.FileDescriptorProto:
    """Describes a file without a package: messages `First`, and `Order` with one `Place` in it."""
    file = descriptor_pb2.FileDescriptorProto(name=name, syntax="proto3", dependency=[MOMENT])
    file.package = name.removesuffix(".proto")
    file.message_type.add(name="First").field.add(
        name="x", number=1, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL
    )
    order = file.message_type.add(name="Order")
    order.nested_type.add(name="Place").field.add(
        name="x", number=1, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL
    )
    colour = order.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=0)
    colour.value.add(name="BLUE", number=1)
    root = f".{file.package}.Order"
    for number, (field, type_, more) in enumerate(
        [
            ("n", kind_of_n, {}),
            ("text", Field.TYPE_STRING, {}),
            ("at", Field.TYPE_MESSAGE, {"type_name": ".google.protobuf.Timestamp"}),
            ("colour", Field.TYPE_ENUM, {"type_name": f"{root}.Colour"}),
            ("place", Field.TYPE_MESSAGE, {"type_name": f"{root}.Place"}),
            ("tags", Field.TYPE_STRING, {"label": Field.LABEL_REPEATED}),
            ("ratio", Field.TYPE_DOUBLE, {}),
        ],
        1,
    ):
        order.field.add(
            **{"name": field, "number": number, "type": type_, "label": Field.LABEL_OPTIONAL} | more  # type: ignore[operator]
        )
    return file


def message_of(file: descriptor_pb2.FileDescriptorProto, name: str = "Order") -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"{file.package}.{name}")
    return message_factory.GetMessageClass(found)
