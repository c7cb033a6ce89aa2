# SPDX-License-Identifier: Apache-2.0
"""Strict validation of manifests: those of Kubernetes itself by kubernetes-validate, others by the
CRD that defines them.

A CRD comes from the Go module of its project, at the version pinned here. Its rules in CEL
(x-kubernetes-validations) are not evaluated.
"""

import functools
import json
import os
import subprocess
from pathlib import Path

import jsonschema
import yaml
from kubernetes_validate import utils as kubernetes

OLDEST_KUBERNETES = (1, 30)  # Chart.yaml's kubeVersion
# API group -> Go module, path of the CRD in it
CRDS = {
    "monitoring.coreos.com": ("github.com/prometheus-operator/prometheus-operator@v0.92.0",
                              "example/prometheus-operator-crd"),
    "gateway.networking.k8s.io": ("sigs.k8s.io/gateway-api@v1.6.3", "config/crd/standard"),
    "inference.networking.k8s.io": ("sigs.k8s.io/gateway-api-inference-extension@v1.6.0",
                                    "config/crd/bases"),
    "keda.sh": ("github.com/kedacore/keda/v2@v2.21.0", "config/crd/bases"),
    "serving.kserve.io": ("github.com/kserve/kserve@v0.20.0", "config/crd/full"),
}

# The package reads the same megabyte of definitions for each manifest.
kubernetes.schema_contents = functools.cache(kubernetes.schema_contents)


def kubernetes_versions() -> list[str]:
    """Minor versions with schemas in the package, from the chart's oldest on."""
    versions = [kubernetes.major_minor(version) for version in kubernetes.all_versions()]
    return sorted({v for v in versions if numbers(v) >= OLDEST_KUBERNETES}, key=numbers)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def problem(manifest: dict, version: str) -> str | None:
    """Errors of a strict Kubernetes API server of `version` for the manifest."""
    group = manifest["apiVersion"].rpartition("/")[0]
    try:
        if group in CRDS:
            crd_validator(group, manifest["apiVersion"].rpartition("/")[2],
                          manifest["kind"]).validate(manifest)
        else:
            kubernetes.validate(manifest, version, strict=True)
    except jsonschema.ValidationError as error:
        return f"{manifest['kind']} {'.'.join(map(str, error.path))}: {error.message[:300]}"
    except kubernetes.SchemaNotFoundError as error:
        return error.message
    return None


@functools.cache
def crd_validator(group: str, version: str, kind: str):
    module, folder = CRDS[group]
    for path in sorted((module_directory(module) / folder).glob(f"{group}_*.yaml")):
        if path.stem.rpartition("_")[2] == plural(kind):
            crd = yaml.load(path.read_text(), yaml.CSafeLoader)
            found = [
                v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"]
                if v["name"] == version and v["served"]
            ]
            return jsonschema.Draft4Validator(closed(found[0]))
    raise LookupError(f"{module} has no CRD of {kind} in {folder}")


def plural(kind: str) -> str:
    return kind.lower() + "s"


@functools.cache
def module_directory(module: str) -> Path:
    answer = subprocess.run([os.environ.get("GO", "go"), "mod", "download", "-json", module],
                            capture_output=True, text=True)
    found = json.loads(answer.stdout or "{}")
    if "Dir" not in found:
        raise LookupError(f"{module}: {found.get('Error') or answer.stderr}")
    return Path(found["Dir"])


def closed(schema):
    """The schema with unknown fields refused, as `kubectl apply --validate=strict` refuses them."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {
        key: {name: closed(s)
              for name, s in value.items()} if key == "properties" else closed(value)
        for key, value in schema.items()
    }
    if "properties" in result and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    return result
