"""The only writers of watched Flink clusters: what people register, what clusters answer."""
