"""Settings of the model (compilation, checkpointing, half precision, 4 bits, fused kernels), with rows and with trees.

The oracle is the plain model: the same rows without the setting; for half precision the loss of transformers itself.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch
import transformers.integrations.liger as liger
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch import nn
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

from dair_hf.trees import tree_loss
from tests.fixtures import tiny
from tests.fixtures.dialog_rows import dialog_rows

TREES = {"share_prefixes": "dialogue_id"}
REENTRANT = {f"{tiny.CHECKPOINTING}_kwargs": {"use_reentrant": True}}
COMPILED = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
EXACT: dict[str, dict[str, Any]] = {
    "checkpointing": {tiny.CHECKPOINTING: True},
    "checkpointing-reentrant": {tiny.CHECKPOINTING: True, **REENTRANT},
    "compiled": COMPILED,
    "compiled-chunked": {**COMPILED, "chunked_loss": True},
}


def trained(
    folder: Path, built: Any, kind: str = "llama", dialogs: int = 3, **settings: Any
) -> dict[str, torch.Tensor]:
    """The trained parameters after two steps over some dialogues."""
    steps = {"per_device_train_batch_size": 9, "max_steps": 2, "adam_epsilon": 1e-6, "sample_loss": "causal"}
    made = tiny.trained(folder, kind, dialog_rows(dialogs), built=built, **{**steps, **settings})
    return {name.removeprefix("_orig_mod."): v for name, v in made.items() if v.is_floating_point()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")  # by torch, in tracing
@pytest.mark.parametrize("trees", [{}, TREES], ids=["rows", "trees"])
@pytest.mark.parametrize("name", EXACT)
def test_steps_are_those_of_the_plain_model(name: str, trees: dict[str, Any], tmp_path: Path) -> None:
    torch._dynamo.reset()
    plain = trained(tmp_path, tiny.model("gpt2"), "gpt2")
    assert tiny.distance(plain, trained(tmp_path, tiny.model("gpt2"), "gpt2", **EXACT[name], **trees)) < 1e-9
    assert tiny.distance(plain, tiny.weights(tiny.model("gpt2"))) > 1e-3


# ---- half precision ----


def gradients(model: nn.Module, loss: torch.Tensor) -> torch.Tensor:
    """All gradients of a mean loss, in one vector of float64."""
    model.zero_grad()
    loss.backward()
    return torch.cat([weight.grad.double().flatten() for weight in model.parameters() if weight.grad is not None])


@pytest.mark.parametrize("name", ["rows", "trees", "chunked", "chunked-trees"])
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32])
def test_half_precision_is_as_close_to_float32_as_in_transformers(
    name: str, weights: torch.dtype, tmp_path: Path
) -> None:
    """Weights in bfloat16, or in float32 under autocast: relative errors of the gradients of the mean over targets."""
    rounded = tiny.model("llama", dtype=torch.bfloat16)
    model, exact = rounded.to(weights), copy.deepcopy(rounded).float()
    errors: list[float] = []
    for seed in range(4):
        data = dialog_rows(dialogs=4, partner_every=100, seed=seed)
        settings = {**(TREES if "trees" in name else {}), "chunked_loss": "chunked" in name}
        settings |= {"method": "erm", "normalization": "token", "sample_loss": "causal", "built": model}
        made = tiny.trainer(tmp_path, "llama", data, **settings, per_device_train_batch_size=12)
        batch = next(iter(made.get_train_dataloader()))
        inputs = {column: values[:, 0] for column, values in batch.items() if column in tree_loss.INPUTS}
        context = torch.autocast("cpu", dtype=torch.bfloat16, enabled=weights == torch.float32)
        with context:
            plain = model(**inputs).loss
            ours = made.compute_loss(model, batch)
        reference = gradients(exact, exact(**inputs).loss)
        of_plain, of_ours = ((gradients(model, loss) - reference).norm() / reference.norm() for loss in (plain, ours))
        assert 1e-4 < of_plain < 0.2
        errors.append((of_ours / of_plain).item())
    assert sum(errors) / len(errors) < 1.05


# ---- 4 bits with LoRA ----


@pytest.mark.parametrize("settings", [{}, {"chunked_loss": True}, EXACT["checkpointing"]], ids=str)
def test_4_bit_weights_with_lora_train_as_the_same_weights_in_float32(tmp_path: Path, settings: dict[str, Any]) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    sizes = {**tiny.KINDS["llama"][2], "hidden_size": 64, "num_key_value_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=tiny.VOCAB, **sizes)).save_pretrained(tmp_path / "base")
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype="float32"
    )

    def built(dequantizes: bool) -> Any:
        base = LlamaForCausalLM.from_pretrained(
            tmp_path / "base", quantization_config=quantization, dtype=torch.float32
        )
        assert base.get_memory_footprint() < 0.5 * base.num_parameters() * 4
        base = base.dequantize() if dequantizes else prepare_model_for_kbit_training(base, False)
        torch.manual_seed(3)
        return get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False))

    def adapters(dequantizes: bool, **trees: Any) -> dict[str, torch.Tensor]:
        found = trained(tmp_path, built(dequantizes), **settings, **trees)
        return {name: values for name, values in found.items() if "lora" in name}

    plain, rows, trees = adapters(True), adapters(False), adapters(False, **TREES)
    start = {name: weight for name, weight in tiny.weights(built(True)).items() if "lora" in name}
    assert tiny.distance(plain, rows) < 1e-4 and tiny.distance(plain, trees) < 1e-4
    assert tiny.distance(plain, start) > 1e-2


# ---- fused kernels ----


@functools.wraps(LlamaForCausalLM.forward)
def fused_forward(self: Any, *args: Any, labels: Any = None, **kwargs: Any) -> Any:
    """Forward that computes no logits where it is trained with labels, as Liger's."""
    assert labels is None or not self.training
    return type(self).forward(self, *args, labels=labels, **kwargs)


def apply(model: Any, **settings: Any) -> None:
    """Replace the forward of an instance, as Liger does."""
    model.forward = MethodType(fused_forward, model)


def use_stub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put an imitation in the place of `liger_kernel`."""
    stub = ModuleType("liger_kernel.transformers")
    stub._apply_liger_kernel_to_instance = apply  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "liger_kernel", ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", stub)
    monkeypatch.setattr(liger, "is_liger_kernel_available", lambda: True)
    return {}


def use_liger(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run Liger's kernels in Triton's interpreter, which runs those of rotary positions, not of norms and SwiGLU."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("liger_kernel.transformers", reason="liger-kernel and triton are not installed")
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", modeling_llama.apply_rotary_pos_emb)  # to restore it
    return {"rms_norm": False, "swiglu": False}


@pytest.mark.parametrize("use", [use_stub, use_liger])
@pytest.mark.parametrize("settings", [{}, {"chunked_loss": True}], ids=str)
def test_fused_kernels(
    use: Callable[[Any], dict[str, Any]], settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_loss, "DENSE_NODES", 32)  # of the probe, since the interpreter is slow
    settings = {**settings, "dialogs": 1}
    plain = trained(tmp_path, tiny.model("llama", dtype=torch.float32), **settings)
    kernels = use(monkeypatch)
    for trees in ({}, TREES):
        built = tiny.model("llama", dtype=torch.float32)
        found = trained(tmp_path, built, use_liger_kernel=True, liger_kernel_config=kernels, **settings, **trees)
        assert "forward" in vars(built)
        assert tiny.distance(plain, found) < 1e-4
