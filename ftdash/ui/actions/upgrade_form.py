"""The form that upgrades a pipeline: to a package of the store, or to a wheel that is uploaded.

Nothing of the wheel is imported here; `CodeStore` refuses what is no wheel.
"""

from typing import Any

from django import forms
from django.conf import settings as configuration
from django.core.files.uploadedfile import UploadedFile

from ftdash.formats import size
from ftdash.jobs.answers import PipelinePage
from ftdash.jobs.validation import package_store
from ftdash.ui.actions.forms import ActionForm
from ftdash.upgrades import packages, services
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

    def clean(self) -> dict[str, Any]:
        values = self.cleaned_data
        has_package, has_wheel = bool(values.get("package")), bool(values.get("wheel"))
        if has_package == has_wheel:
            self.add_error("package", "Choose a package or a wheel, one of the two.")
        return values

    def ask(self, who: str) -> RequestId:
        """Raises Rejected."""
        values = self.cleaned_data
        wheel, why = values["wheel"], values["reason"]
        code = _kept(wheel, who, why) if wheel else _of_store(values["package"])
        return services.upgrade(
            pipeline=self.page.name,
            code=code,
            requester=who,
            reason=why,
            allow_non_restored_state=values["allow_non_restored_state"],
        )


def _of_store(sha256: str) -> ShippedCode:
    return package_store().find(sha256)


def _kept(given: "UploadedFile[bytes]", who: str, why: str) -> ShippedCode:
    """In the store from now on."""
    return packages.upload(given.name or "", given.size or 0, given.chunks(), who=who, reason=why)
