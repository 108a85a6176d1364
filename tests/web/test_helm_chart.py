"""The Helm chart as the real `helm` rendered it: it fits Kubernetes' schemas and is consistent.

It was rendered, not run: there is no Kubernetes here.
"""

import json
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator
from packaging.version import Version

from ftdash.deployment.starting import NAMES
from ftdash.settings import SECRET_VARIABLES
from pipelines import __version__
from tests.rendered_chart import (
    CASES,
    CHART,
    NAMESPACE,
    has_helm,
    kept,
    lint,
    manifests,
    render,
    values_of,
    with_heading,
    without_heading,
)

OLDEST, NEWEST = "1.25", "1.37"
GUIDE = CHART.parents[1] / "kubernetes.md"
Manifest = dict[str, Any]


@pytest.mark.parametrize("case", CASES)
def test_the_stored_manifests_match_the_rendered_chart(case: str) -> None:
    """Without helm, the digests in the heading show it."""
    if has_helm():
        lint(case)
        assert render(case) == kept(case)

    rendered = without_heading(kept(case))
    assert kept(case) == with_heading(rendered), "run `python -m tests.rendered_chart`"


def test_the_chart_and_its_guide_have_the_version_of_the_next_or_this_release() -> None:
    version = Version(__version__).base_version

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert f"image: registry.example.org/ftdash:{version}\n" in GUIDE.read_text()


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("case", CASES)
def test_each_manifest_follows_the_schema_of_kubernetes(case: str, version: str) -> None:
    assert [
        problem(each, version) for each in manifests(kept(case)) if problem(each, version)
    ] == []


def problem(manifest: Manifest, version: str) -> str:
    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{manifest['kind']}: {error.message}"
    return ""


def test_values_that_are_required_have_no_default() -> None:
    schema = Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    given = yaml.safe_load(values_of("plain").read_text())

    missing = {error.path[0] for error in schema.iter_errors(defaults)}

    assert missing == given.keys()
    assert schema.is_valid(defaults | given)
    assert not schema.is_valid(defaults | given | {"spark": {"enabled": True, "executorImage": ""}})


def named(case: str) -> dict[tuple[str, str], Manifest]:
    return {(each["kind"], each["metadata"]["name"]): each for each in manifests(kept(case))}


def pods(case: str) -> dict[str, Manifest]:
    """Returns the specs of the pods by component."""
    templates = [
        each["spec"]["template"]
        for each in manifests(kept(case))
        if "template" in each.get("spec", {})
    ]
    label = "app.kubernetes.io/component"
    return {each["metadata"]["labels"][label]: each["spec"] for each in templates}


@pytest.mark.parametrize("case", CASES)
def test_every_process_of_an_installation_has_its_pod(case: str) -> None:
    arguments = {name: pod["containers"][0]["args"] for name, pod in pods(case).items()}

    assert arguments.keys() == {*NAMES, "prepare"}
    for name in NAMES:
        assert arguments[name][:2] == ["serve", name]
    for kind, name in (
        ("Deployment", "beat"),
        ("Deployment", "projector"),
        ("StatefulSet", "worker"),
    ):
        assert named(case)[kind, f"ftdash-{name}"]["spec"]["replicas"] == 1


@pytest.mark.parametrize("case", CASES)
def test_no_pod_is_root_writes_to_its_image_or_has_a_password_in_its_variables(case: str) -> None:
    for pod in pods(case).values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        [container] = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        variables = {each["name"]: each["value"] for each in container["env"]}
        files = {name: value for name, value in variables.items() if name.endswith("_FILE")}
        assert {name.removesuffix("_FILE") for name in files} < set(SECRET_VARIABLES)
        [secrets] = [each["secret"] for each in pod["volumes"] if each["name"] == "secrets"]
        given = {f"/run/secrets/ftdash/{each['path']}" for each in secrets["items"]}
        assert set(files.values()) == given


@pytest.mark.parametrize("case", CASES)
def test_every_object_that_a_manifest_refers_to_exists(case: str) -> None:
    there = named(case)
    for pod in pods(case).values():
        mounted = {each["name"] for each in pod["containers"][0]["volumeMounts"]}
        assert mounted == {each["name"] for each in pod["volumes"]}
        for volume in pod["volumes"]:
            if claim := volume.get("persistentVolumeClaim"):
                assert ("PersistentVolumeClaim", claim["claimName"]) in there
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in there
        if account := pod.get("serviceAccountName"):
            assert ("ServiceAccount", account) in there
    for manifest in there.values():
        if manifest["kind"] in ("Deployment", "StatefulSet"):
            selected = manifest["spec"]["selector"]["matchLabels"].items()
            assert selected <= manifest["spec"]["template"]["metadata"]["labels"].items()
    [rule] = there["Ingress", "ftdash-web"]["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert ("Service", backend["name"]) in there
    selected = there["Service", "ftdash-web"]["spec"]["selector"]["app.kubernetes.io/component"]
    assert selected == "web"


def test_without_spark_on_kubernetes_no_pod_has_rights() -> None:
    assert {kind for kind, _ in named("plain")} & {"Role", "RoleBinding", "ServiceAccount"} == set()
    assert all(pod["automountServiceAccountToken"] is False for pod in pods("plain").values())


def test_a_driver_may_create_executors_which_find_it_but_have_no_rights() -> None:
    there = named("spark")
    worker, service = there["StatefulSet", "ftdash-worker"], there["Service", "ftdash-worker"]
    defaults = dict(
        line.split(maxsplit=1)
        for line in there["ConfigMap", "ftdash-spark"]["data"]["spark-defaults.conf"].splitlines()
    )
    template = yaml.safe_load(there["ConfigMap", "ftdash-spark"]["data"]["executor.yaml"])

    assert service["spec"]["clusterIP"] == "None"
    assert worker["spec"]["serviceName"] == "ftdash-worker"
    assert (
        service["spec"]["selector"].items()
        <= worker["spec"]["template"]["metadata"]["labels"].items()
    )
    assert defaults["spark.kubernetes.driver.pod.name"] == "ftdash-worker-0"
    assert defaults["spark.kubernetes.namespace"] == NAMESPACE
    executor = defaults["spark.kubernetes.authenticate.executor.serviceAccountName"]
    assert there["ServiceAccount", executor]["automountServiceAccountToken"] is False
    binding = there["RoleBinding", "ftdash-driver"]
    assert [each["name"] for each in binding["subjects"]] == ["ftdash-driver"]
    assert ("Role", binding["roleRef"]["name"]) in there
    assert pods("spark")["worker"]["serviceAccountName"] == "ftdash-driver"
    [pods_rule, *_] = there["Role", "ftdash-driver"]["rules"]
    assert {"create", "delete", "watch"} < set(pods_rule["verbs"])
    assert [name for name, pod in pods("spark").items() if "serviceAccountName" in pod] == [
        "worker"
    ]
    assert problem(template, NEWEST) == ""
    mounts = {
        each["name"]: each["mountPath"]
        for each in pods("spark")["worker"]["containers"][0]["volumeMounts"]
    }
    assert defaults["spark.kubernetes.executor.podTemplateFile"].startswith(mounts["spark"])
