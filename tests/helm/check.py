#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks of tests/helm/run.sh, which installs what they need. Prints one line per check; the
last is `N passed, N failed`."""

import json
import re
import sys
import tempfile
from pathlib import Path

import yaml

import schemas
from chart import CHART, EXAMPLES, REPOSITORY, VALUES, Workload, helm, of_kind, render
from example_checks import check_examples, check_strictness
from pod_checks import POD_IP, check_pod, check_server
from report import attempt, counts, differs, report
from server import Server, version

# Kinds of each value set, besides Deployment and Service.
KINDS = {
    "default": {"PodDisruptionBudget"},
    "pvc-keys-metrics": {
        "PodDisruptionBudget", "Secret", "ServiceMonitor", "PrometheusRule", "NetworkPolicy"
    },
    "gpu": {"PodDisruptionBudget"},
    "hub": {"PodDisruptionBudget", "NetworkPolicy"},
    "autoscaling": {"PodDisruptionBudget", "ServiceMonitor", "HorizontalPodAutoscaler"},
    "image-volume": {"PodDisruptionBudget", "ServiceMonitor"},
    "init-container": {"PodDisruptionBudget", "NetworkPolicy"},
    "kv-cache-disk": {"PodDisruptionBudget"},
    "kv-events": {"PodDisruptionBudget", "NetworkPolicy"},
    "llm-d": {"PodDisruptionBudget"},
    "placement": set(),
}
# How pods are replaced in an update: without a missing one, unless a set says otherwise.
ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
UPDATES = {"kv-cache-disk": {"type": "Recreate"}}
OLDEST = {"image-volume": "1.31"}  # Kubernetes version that a set needs, if newer than the chart's
# Wrong values, and the words of the refusal.
REFUSED = [
    (["--set", "replica=2"], "replica"),
    (["--set", "model.source=s3"], "/model/source"),
    (["--set", "model.source=pvc"], "/model/pvc/claimName"),
    (["--set", "model.source=image"], "/model/image/reference"),
    (["--set", "model.source=initContainer"], "/model/initContainer/image"),
    (["--set", "model.source=hub"], "/model/hub/repository"),
    (["--set", "model.source=hub,model.hub.repository=hf:a/b"], "/model/hub/repository"),
    (["--set", "ports.http=80"], "/ports/http"),
    (["--set-string", "ports.grpc=8001"], "/ports/grpc"),
    (["--set", "drainSeconds=1h"], "/drainSeconds"),
    (["--set", "listenAddress=127.0.0.1"], "/listenAddress"),
    (["--set", "apiKeys.keys={two words}"], "/apiKeys/keys/0"),
    (["--set", "networkPolicy.enabled=true"], "/networkPolicy/clients"),
    (["--set", "podDisruptionBudget.maxUnavailable=0"], "/podDisruptionBudget/maxUnavailable"),
    (["--set", "llmD.role=prefill"], "/llmD/role"),
    (["--set", "llmD.guide=two words"], "/llmD/guide"),
    (["--set", "kvCacheDisk.size=16GiB"], "/kvCacheDisk/size"),
    (["--set", "kvCacheDisk.enabled=true,kvCacheDisk.volume=pvc"], "/kvCacheDisk/pvc/claimName"),
    (["--set", "kvCacheDisk.enabled=true,gpu.enabled=true"], "kvCacheDisk.enabled"),
    (["--set", "extraArgs={--port=80}"], "the chart sets --port"),
    (["--set", "apiKeys.keys={a},serviceMonitor.enabled=true"], "apiKeys.scrapeKey"),
    (["--set", "model.source=image,model.image.reference=a/b:1", "--kube-version",
      "1.30"], "Kubernetes 1.31"),
    (["--kube-version", "1.29"], ">=1.30"),
]


def check_deployment(name: str, deployment: dict) -> None:
    """Checks a pod's properties besides its server container."""
    spec, pod = deployment["spec"], deployment["spec"]["template"]["spec"]
    problems = differs((pod["automountServiceAccountToken"], spec["strategy"]),
                       (False, UPDATES.get(name, ROLLING)))
    first, *others = [
        c["securityContext"] for c in pod["containers"] + pod.get("initContainers", [])
    ]
    problems += [f"another container runs with {other}" for other in others if other != first]
    secrets = [volume["secret"] for volume in pod.get("volumes", []) if "secret" in volume]
    problems += [
        p for secret in secrets
        for p in differs((secret["defaultMode"], pod["securityContext"]["fsGroup"]), (0o440, 10001))
    ]
    report(
        f"{name}: no token, the strategy of updates, equal rights, secrets readable by the group "
        f"alone",
        problems)


def check_gpu(manifests: list[dict]) -> None:
    deployment = of_kind(manifests, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    workload = Workload.of_deployment("gpu", deployment)
    found = (container["resources"]["limits"], container["image"].rpartition(":")[2],
             workload.flag("--device"), pod["runtimeClassName"])
    report(
        "gpu: one GPU beside the other limits, the cuda image, the device and the runtime class",
        differs(found, ({"nvidia.com/gpu": 1, "cpu": "4", "memory": "24Gi"
                         }, f"{version()}-cuda", "cuda", "nvidia")))


def check_hub(manifests: list[dict]) -> None:
    workload = Workload.of_deployment("hub", of_kind(manifests, "Deployment"))
    env = {variable["name"]: variable for variable in workload.container["env"]}
    mount = workload.mount(env["HF_HOME"]["value"])
    volume = workload.volumes[mount["name"]]
    report(
        "hub: the model's name, a cache in the claim that the server may write, the token's secret",
        differs((workload.args[1], mount.get("readOnly", False), volume["persistentVolumeClaim"],
                 env["HF_TOKEN"]["valueFrom"]["secretKeyRef"]),
                ("hf:kajuma/DiffLlama-1B@main", False, {"claimName": "hub-cache"},
                 {"name": "hub-token", "key": "token"})))
    egress = of_kind(manifests, "NetworkPolicy")["spec"]["egress"]
    report("hub: names may be resolved, and TCP 443 may be reached",
           differs([sorted({port["port"] for port in rule["ports"]}) for rule in egress],
                   [[53], [443]]))


def check_kv_cache_disk(manifests: list[dict]) -> None:
    workload = Workload.of_deployment("kv-cache-disk", of_kind(manifests, "Deployment"))
    with tempfile.TemporaryDirectory() as folder:
        cached = []
        for _ in range(2):
            with Server(workload, cache=folder) as server:
                cached.append(server.cached_tokens())
    report("kv-cache-disk: a new pod finds the pages of the old one",
           [] if cached[0] == 0 < cached[1] else [f"{cached} cached tokens"])


def check_kv_events(manifests: list[dict]) -> None:
    workload = Workload.of_deployment("kv-events", of_kind(manifests, "Deployment"))
    args = workload.expanded_args(POD_IP)
    found = args[args.index("--kv-events-topic") + 1]
    report(
        "kv-events: the topic names the pod's address, HTTP port and model",
        differs(found,
                f"kv@{POD_IP}:{workload.ports['http']}@{workload.flag('--served-model-name')}"))


def llm_d_labels(*options) -> dict:
    manifests = render(VALUES["llm-d"], schemas.kubernetes_versions()[-1], *options)
    labels = of_kind(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    return {name: text for name, text in labels.items() if name.startswith("llm-d.ai/")}


def check_llm_d(manifests: list[dict]) -> None:
    deployment = of_kind(manifests, "Deployment")
    labels = {
        "llm-d.ai/engine-type": "vllm",
        "llm-d.ai/inference-serving": "true",
        "llm-d.ai/model": "org-tiny-diff-1",
        "llm-d.ai/role": "decode",  # by podLabels
        "llm-d.ai/guide": "optimized-baseline",
        "llm-d.ai/accelerator-variant": "cpu"
    }
    report("llm-d: its router finds the pods, and podLabels may replace a label",
           differs(llm_d_labels(), labels))
    gpu = {"llm-d.ai/accelerator-variant": "gpu", "llm-d.ai/accelerator-vendor": "nvidia"}
    report("llm-d: on a GPU the labels say so",
           differs(llm_d_labels("--set", "gpu.enabled=true"), {**labels, **gpu}))
    alone = {"llm-d.ai/role": "decode"}
    report("llm-d: without llmD.enabled only podLabels are there",
           differs(llm_d_labels("--set", "llmD.enabled=false"), alone))
    selector = deployment["spec"]["selector"]["matchLabels"]
    report("llm-d: no label of it is in the selector, which can never change",
           [name for name in selector if name.startswith("llm-d.ai/")])


def check_rules(manifests: list[dict]) -> None:
    groups = of_kind(manifests, "PrometheusRule")["spec"]["groups"]
    file = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "rules.yml").read_text())
    report("the rules are those of deploy/prometheus", differs(groups, file["groups"]))
    monitor, service = of_kind(manifests, "ServiceMonitor"), of_kind(manifests, "Service")
    job = service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    patterns = set(
        re.findall(r'job=~"([^"]+)"',
                   str([rule["expr"] for group in groups for rule in group["rules"]])))
    report(f"the rules look at job {job}",
           [p for p in patterns
            if not re.fullmatch(p, job)] if patterns else ["no job in the rules"])


def check_image(default: list[dict]) -> None:
    """Checks that the container's arguments continue the image's command and name a model of the
    image."""
    said = dict(
        re.findall(r"^(USER|ENTRYPOINT|CMD) (.*)$",
                   (REPOSITORY / "deploy" / "Dockerfile").read_text(), re.M))
    workload = Workload.of_deployment("default", of_kind(default, "Deployment"))
    report(
        "the image's user, program and model are the chart's",
        differs((said["USER"], json.loads(said["ENTRYPOINT"]), json.loads(said["CMD"])[:2]),
                (":".join([str(workload.pod_security["runAsUser"])] * 2), ["diffserve"
                                                                           ], workload.args[:2])))


def check_versions(default: list[dict]) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    image = of_kind(default, "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"]
    runtime = next(yaml.safe_load_all((EXAMPLES / "kserve.yaml").read_text()))
    report("chart and images have the release's version", differs(
        [chart["version"], chart["appVersion"], image, runtime["spec"]["containers"][0]["image"]],
        [version(), version(), f"diffserve:{version()}", f"diffserve:{version()}"]))


def check_manifests(name: str, values: Path) -> list[dict]:
    done = helm("lint", "--strict", "--kube-version",
                schemas.kubernetes_versions()[-1], "-f", values, CHART)
    report(f"{name}: helm lint --strict",
           [] if done.returncode == 0 else [done.stdout + done.stderr])
    versions = [
        v for v in schemas.kubernetes_versions()
        if schemas.numbers(v) >= schemas.numbers(OLDEST.get(name, "1.30"))
    ]
    problems, manifests = [], []
    for version in versions:
        manifests = render(values, version)
        problems += [
            f"{version}: {p}" for manifest in manifests if (p := schemas.problem(manifest, version))
        ]
    report(
        f"{name}: {len(manifests)} manifests valid on Kubernetes {versions[0]} to {versions[-1]}",
        problems)
    kinds = sorted(manifest["kind"] for manifest in manifests)
    report(f"{name}: kinds {', '.join(kinds)}",
           differs(kinds, sorted({"Deployment", "Service"} | KINDS[name])))
    return manifests


def check_selectors(name: str, manifests: list[dict]) -> None:
    deployment, service = of_kind(manifests, "Deployment"), of_kind(manifests, "Service")
    pod_labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    problems = []
    for manifest in manifests:
        spec = manifest.get("spec", {})
        selector = {
            "Service": lambda: spec["selector"],
            "NetworkPolicy": lambda: spec["podSelector"]["matchLabels"],
            "Deployment": lambda: spec["selector"]["matchLabels"],
            "PodDisruptionBudget": lambda: spec["selector"]["matchLabels"]
        }.get(manifest["kind"], dict)()
        if not selector.items() <= pod_labels:
            problems += [f"{manifest['kind']} selects {selector}"]
        if manifest["kind"] == "HorizontalPodAutoscaler":
            problems += differs(spec["scaleTargetRef"]["name"], deployment["metadata"]["name"])
            if "replicas" in deployment["spec"]:
                problems += ["replicas beside an autoscaler"]
        if manifest["kind"] == "ServiceMonitor":
            labels, port = service["metadata"]["labels"].items(), spec["endpoints"][0]["port"]
            if not spec["selector"]["matchLabels"].items() <= labels:
                problems += ["ServiceMonitor misses the Service"]
            if port not in [p["name"] for p in service["spec"]["ports"]]:
                problems += [f"no port {port}"]
        if manifest["kind"] == "NetworkPolicy":
            if not all(rule.get("from") for rule in spec["ingress"]):
                problems += ["an ingress rule for everybody"]
            problems += differs(sorted(spec["policyTypes"]), ["Egress", "Ingress"])
            if bool(spec["egress"]) != (name in ("init-container", "hub")):
                problems += ["only init-container and hub have egress rules"]
            allowed = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
            problems += differs(allowed,
                                set(Workload.of_deployment(name, deployment).ports.values()))
    report(f"{name}: selectors and references meet", problems)


def check_refusal(options: list[str], named: str) -> None:
    version = [] if "--kube-version" in options else [
        "--kube-version", schemas.kubernetes_versions()[-1]
    ]
    done = helm("template", "diffserve", CHART, *version, *options)
    problems = [] if done.returncode and named in done.stderr else [
        f"exit code {done.returncode}, {done.stderr[:300]!r}"
    ]
    report(f"refused, naming {named}: {' '.join(options)}", problems)


def check_value_set(name: str, values: Path) -> None:
    manifests = check_manifests(name, values)
    check_selectors(name, manifests)
    deployment = of_kind(manifests, "Deployment")
    workload = Workload.of_deployment(name, deployment)
    check_deployment(name, deployment)
    check_pod(workload)
    if workload.flag("--device") == "cpu":
        check_server(workload, manifests)
    for extra in {
            "default": [check_versions, check_image,
                        check_examples], "pvc-keys-metrics": [check_strictness, check_rules],
            "autoscaling": [check_strictness], "gpu": [check_gpu], "hub": [check_hub],
            "kv-events": [check_kv_events],
            "llm-d": [check_llm_d],
            "kv-cache-disk": [check_kv_cache_disk]
    }.get(name, []):
        attempt(extra, manifests)


def main() -> int:
    report("value sets and expected kinds", differs(sorted(VALUES), sorted(KINDS)))
    for name, values in VALUES.items():
        attempt(check_value_set, name, values)
    for options, named in REFUSED:
        attempt(check_refusal, options, named)
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    return 0 if counts["passed"] and not counts["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
