# SPDX-License-Identifier: Apache-2.0
"""The chart as rendered by helm, and the properties of a rendered pod."""

import os
import re
import subprocess
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "deploy" / "helm" / "diffserve"
EXAMPLES = REPOSITORY / "deploy" / "kubernetes"
VALUES = {path.stem: path for path in sorted((Path(__file__).parent / "values").glob("*.yaml"))}


def helm(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([os.environ.get("HELM", "helm"), *map(str, arguments)],
                          capture_output=True, text=True)


def render(values: Path, kubernetes: str, *options) -> list[dict]:
    """The manifests of a release named like the chart."""
    done = helm("template", "diffserve", CHART, "--namespace", "serving", "--kube-version",
                kubernetes, "-f", values, *options)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def of_kind(manifests: list[dict], kind: str) -> dict:
    found = [manifest for manifest in manifests if manifest["kind"] == kind]
    if len(found) != 1:
        raise LookupError(f"{len(found)} manifests of kind {kind}")
    return found[0]


class Workload:
    """One server container of a pod: of the chart's Deployment or KServe's runtime."""

    def __init__(self, name: str, container: dict, grace_s: int, pod_security: dict,
                 volumes: list[dict]):
        self.name, self.container, self.grace_s = name, container, grace_s
        self.pod_security = pod_security
        self.volumes = {volume["name"]: volume for volume in volumes}
        self.args = container["args"]
        self.ports = {port["name"]: port["containerPort"] for port in container["ports"]}

    @classmethod
    def of_deployment(cls, name: str, deployment: dict):
        pod = deployment["spec"]["template"]["spec"]
        return cls(name, pod["containers"][0], pod["terminationGracePeriodSeconds"],
                   pod["securityContext"], pod.get("volumes", []))

    @classmethod
    def of_kserve(cls, runtime: dict, service: dict):
        predictor = service["spec"]["predictor"]
        return cls("kserve", runtime["spec"]["containers"][0],
                   predictor["terminationGracePeriodSeconds"], {}, [])

    def flag(self, name: str) -> str | None:
        return self.args[self.args.index(name) + 1] if name in self.args else None

    def flags(self) -> list[str]:
        return [arg.partition("=")[0] for arg in self.args if arg.startswith("--")]

    def probes(self) -> dict[str, dict]:
        return {
            name: self.container[name]["httpGet"]
            for name in ("startupProbe", "livenessProbe", "readinessProbe")
        }

    def port_number(self, port) -> int:
        return port if isinstance(port, int) else self.ports[port]

    def pre_stop_s(self) -> int:
        return self.container.get("lifecycle", {}).get("preStop", {}).get("sleep",
                                                                          {}).get("seconds", 0)

    def mount(self, path: str) -> dict | None:
        """The mount that holds `path`."""
        return next((m for m in self.container.get("volumeMounts", [])
                     if (path + "/").startswith(m["mountPath"] + "/")), None)

    def expanded_args(self, pod_ip: str) -> list[str]:
        """The arguments as the kubelet passes them: $(NAME) is replaced from the container's
        environment."""
        of_the_pod = {"status.podIP": pod_ip}  # values of the downward API
        known = {}
        for variable in self.container.get("env", []):
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            known[variable["name"]] = variable.get("value") or of_the_pod.get(field, "")
        return [
            re.sub(r"\$\((\w+)\)", lambda match: known.get(match[1], match[0]), arg)
            for arg in self.args
        ]
