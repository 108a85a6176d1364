"""Rows of requests keep their command as one tagged value, in place of a kind with texts.

It names fields and values as they were when it was written: later changes of the commands do not
change what it does. Rows of older versions lack some parameters; they get what was usual then. The
way back leaves the parameters empty.
"""

import re
from typing import Any

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

REPLAYED = re.compile(r"([\d,]+) of (.+?)(?=, [\d,]+ of |$)")
TAGS = {
    "SUBMIT": "StartPipeline",
    "RESTORE": "RestorePipeline",
    "CHECKPOINT": "TriggerCheckpoint",
    "SAVEPOINT": "TakeSavepoint",
    "STOP_WITH_SAVEPOINT": "StopWithSavepoint",
    "CANCEL_WITH_SAVEPOINT": "CancelWithSavepoint",
    "CANCEL": "Cancel",
    "DISPOSE": "DisposeSavepoint",
    "LABEL": "LabelSavepoint",
    "CHANGE_SETTINGS": "ChangeSettings",
    "KILL_SLOT": "KillSlot",
    "KILL_DRIVER": "KillDriver",
    "SLOW_SLOT": "SlowSlot",
    "ALLOW_FAULTS": "AllowFaults",
}


def convert(apps: Any, _: BaseDatabaseSchemaEditor) -> None:
    requests = apps.get_model("jobs", "Request").objects
    changed = []
    for row in requests.iterator():
        row.command_json = {"type": TAGS[row.kind], **fields(row.kind, row.parameters)}
        changed.append(row)
    requests.bulk_update(changed, ["command_json"], batch_size=500)


def fields(kind: str, given: dict[str, str]) -> dict[str, Any]:
    match kind:
        case "SUBMIT":
            return {"parallelism": int(given.get("parallelism", 1))}
        case "RESTORE":
            replayed = REPLAYED.findall(given.get("replay-quarantine", ""))
            return {
                "path": given.get("path", ""),
                "parallelism": int(given.get("parallelism", 1)),
                "claim_mode": given.get("claim-mode", "NO_CLAIM"),
                "allow_non_restored_state": given.get("allow-non-restored-state") == "true",
                "replayed": {uid: int(count.replace(",", "")) for count, uid in replayed},
            }
        case "SAVEPOINT" | "STOP_WITH_SAVEPOINT" | "CANCEL_WITH_SAVEPOINT":
            drain = {"drain": "drain" in given} if kind == "STOP_WITH_SAVEPOINT" else {}
            taken_as, label = given.get("type", "CANONICAL"), given.get("label", "")
            return {"format": taken_as, "label": label, **drain}
        case "DISPOSE":
            return {"path": given.get("path", "")}
        case "LABEL":
            return {"path": given.get("path", ""), "label": given.get("label", "")}
        case "CHANGE_SETTINGS":
            return {"settings": given}
        case "KILL_SLOT":
            moment = given.get("moment", "now")
            return {"slot": int(given["slot"]), "moment": moment, **within(given)}
        case "KILL_DRIVER":
            slot = int(given["slot"]) if "slot" in given else None
            return {"moment": given["moment"], "slot": slot, **within(given)}
        case "SLOW_SLOT":
            return {name: int(given[name]) for name in ("slot", "delay_ms", "for_ms")}
        case "ALLOW_FAULTS":
            return {"allowed": given.get("allowed") == "true"}
        case _:
            return {}


def within(given: dict[str, str]) -> dict[str, float]:
    return {"within_s": float(given.get("within_s", 600))}


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0025_points_not_counted"),
    ]

    operations = [
        migrations.AddField(
            model_name="request",
            name="command_json",
            field=models.JSONField(default=dict),
            preserve_default=False,
        ),
        migrations.RunPython(convert, migrations.RunPython.noop),
    ]
