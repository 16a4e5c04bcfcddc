"""Clusters as the overlays and the components make them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.k8s.cluster import K8S, Cluster, render

COMPOSITIONS: dict[str, tuple[str, ...]] = {
    "cpu": (),
    "gpu": (),
    "cpu with mtls": ("mtls",),
    "gpu with everything": ("mtls", "metrics", "tracing", "autoscaling"),
}
# What components/mtls leaves to the operator, as it says.
BROUGHT = {"Secret/gateway-tls", "Secret/verifier-tls", "Secret/drafter-tls"}


@pytest.fixture(scope="session", autouse=True)
def _kubectl() -> None:
    if shutil.which("kubectl") is None:
        reason = "kubectl (1.27 or newer) is not on PATH: the manifests cannot be rendered"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Cluster]:
    """compose("cpu", "mtls", …): that overlay with those components, in a copy of k8s/."""

    def build(
        overlay: str,
        *components: str,
        namespace: str = "",
        edit: Callable[[Path], None] | None = None,
    ) -> Cluster:
        folder = tmp_path_factory.mktemp("k8s") / "k8s"
        shutil.copytree(K8S, folder)
        if edit is not None:
            edit(folder)
        own = folder / "overlays" / "composed"
        own.mkdir()
        kustomization: dict[str, object] = {
            **({"namespace": namespace} if namespace else {}),
            "resources": [f"../{overlay}"],
            "components": [f"../../components/{name}" for name in components],
        }
        (own / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return render(own)

    return build


@pytest.fixture(scope="session", params=sorted(COMPOSITIONS))
def cluster(request: pytest.FixtureRequest, compose: Callable[..., Cluster]) -> Cluster:
    name: str = request.param
    return compose(name.split(maxsplit=1)[0], *COMPOSITIONS[name])
