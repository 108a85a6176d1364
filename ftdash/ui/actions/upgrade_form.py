"""The form that upgrades a pipeline: to a package of the store, or to a wheel that is uploaded.

Nothing of the wheel is imported here. Its name comes from the browser, so only its last part
counts; `CodeStore` refuses what is no wheel.
"""

import tempfile
from pathlib import Path
from typing import Any

from django import forms
from django.conf import settings as configuration
from django.core.files.uploadedfile import UploadedFile

from ftdash.formats import size
from ftdash.jobs.answers import PipelinePage
from ftdash.jobs.validation import package_store
from ftdash.ui.actions.forms import ActionForm
from ftdash.upgrades import services
from pipelines.domain.commands import UpgradePipeline
from pipelines.domain.ids import RequestId
from pipelines.domain.run import ShippedCode

NONE = ("", "the wheel below")


class UpgradeForm(ActionForm):
    command = UpgradePipeline
    title = "Upgrade to other code"
    button = "Upgrade ..."

    package = forms.ChoiceField(label="Package", required=False)
    wheel = forms.FileField(label="Or a wheel from your computer", required=False)
    allow_non_restored_state = forms.BooleanField(
        label="Leave behind state of operators that the new code does not have any more",
        required=False,
    )

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        packages = [(each.sha256, each.described) for each in package_store().listed()]
        self.fields["package"].choices = [NONE, *packages]  # type: ignore[attr-defined]
        self.fields[
            "wheel"
        ].help_text = (
            f"Up to {size(configuration.PACKAGE_BYTES_MAX)}. ftdash keeps it under its SHA-256."
        )

    def clean_wheel(self) -> "UploadedFile[bytes] | None":
        given: UploadedFile[bytes] | None = self.cleaned_data["wheel"]
        if given is not None and (given.size or 0) > configuration.PACKAGE_BYTES_MAX:
            most = size(configuration.PACKAGE_BYTES_MAX)
            raise forms.ValidationError(
                f"{given.name} has {size(given.size)}, and may have {most}. Add it on the machine"
                " with `ftdash package add`."
            )
        return given

    def clean(self) -> dict[str, Any]:
        values = self.cleaned_data
        has_package, has_wheel = bool(values.get("package")), bool(values.get("wheel"))
        if has_package == has_wheel and "wheel" not in self.errors:
            self.add_error("package", "Choose a package or a wheel, one of the two.")
        return values

    def ask(self, who: str) -> RequestId:
        """Raises Rejected."""
        values = self.cleaned_data
        code = _kept(values["wheel"]) if values["wheel"] else _of_store(values["package"])
        return services.upgrade(
            pipeline=self.page.name,
            code=code,
            requester=who,
            reason=values["reason"],
            allow_non_restored_state=values["allow_non_restored_state"],
        )


def _of_store(sha256: str) -> ShippedCode:
    return package_store().find(sha256)


def _kept(given: "UploadedFile[bytes]") -> ShippedCode:
    """In the store from now on."""
    with tempfile.TemporaryDirectory(prefix="ftdash-upload-") as directory:
        file = Path(directory) / Path(given.name or "").name
        with file.open("wb") as stream:
            for chunk in given.chunks():
                stream.write(chunk)
        return package_store().add(file)
