"""A study as a JobSet for Kubernetes: an indexed Job for each level of the graph of jobs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biphasic.execution.job import WorkItem, dependents
from biphasic.files import write_text

_FOLDER = "jobset"
# Kubernetes allows 63 characters for a pod, whose name adds those of its Job and its index.
_LONGEST_NAME = 36


@dataclass(frozen=True)
class Pods:
    """What pods are made of."""

    image: str  # Container image with biphasic.
    claim: str  # Volume claim that all pods can write to.
    mount: Path  # Folder of the volume in pods.
    gpus: int  # GPUs of a pod that runs a job on one slot.
    parallelism: int  # Most pods at once.


def levels(items: Iterable[WorkItem]) -> Iterator[list[WorkItem]]:
    """Yield groups of jobs that take equally many slots and need jobs of earlier groups alone."""
    by_id = {item.id: item for item in items}
    waiting = dependents({item.id: item.needs for item in by_id.values()})
    level = [item for item in by_id.values() if item.needs not in by_id]
    while level:
        for slots in sorted({item.num_slots for item in level}, reverse=True):
            yield [item for item in level if item.num_slots == slots]
        level = [by_id[identity] for item in level for identity in waiting[item.id]]


def jobset(
    name: str, items: Iterable[WorkItem], report: str, *, folder: Path, root: Path, pods: Pods
) -> dict[str, Any]:
    """Write lists of jobs into the study's folder; return the manifest that runs them in order."""
    groups = [([item.id for item in group], group[0].num_slots) for group in levels(items)]
    jobs: list[dict[str, Any]] = []
    for number, (identities, slots) in enumerate([*groups, ([report], 0)]):
        file = folder / _FOLDER / f"level-{number}.txt"
        write_text(file, "".join(f"{identity}\n" for identity in identities))
        command = ["biphasic", "job", "run", "--list", str(file), "--root", str(root), "--quiet"]
        job = _job(command, len(identities), gpus=pods.gpus * slots, pods=pods)
        jobs.append({"name": f"level-{number}", "replicas": 1, "template": job})
        if number:
            jobs[-1]["dependsOn"] = [{"name": f"level-{number - 1}", "status": "Complete"}]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": _name(name)},
        "spec": {"replicatedJobs": jobs},
    }


def _name(study: str) -> str:
    """Return a study's name as Kubernetes allows it: short, with hyphens, from a letter on."""
    name = re.sub(r"[^a-z0-9]+", "-", study).strip("-")
    if not name[:1].isalpha():
        name = f"study-{name}".strip("-")
    if len(name) > _LONGEST_NAME:
        digest = hashlib.sha256(study.encode()).hexdigest()[:8]
        name = f"{name[: _LONGEST_NAME - 9].strip('-')}-{digest}"
    return name


def _job(command: list[str], count: int, *, gpus: int, pods: Pods) -> dict[str, Any]:
    """Return the template of an indexed Job; an index is a line of the list."""
    container: dict[str, Any] = {
        "name": "job",
        "image": pods.image,
        "command": command,
        "volumeMounts": [{"name": "runs", "mountPath": str(pods.mount)}],
    }
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    return {
        "spec": {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": min(count, pods.parallelism),
            "backoffLimitPerIndex": 2,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [container],
                    "volumes": [
                        {"name": "runs", "persistentVolumeClaim": {"claimName": pods.claim}}
                    ],
                }
            },
        }
    }
