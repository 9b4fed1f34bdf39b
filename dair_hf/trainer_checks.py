"""What DAIRTrainer looks at before it starts: the sample loss, the model's decoder and dropout, settings that clash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from dair_hf.config import DAIRConfig
from dair_hf.packing import ATTENTION_FOR_PACKING
from dair_hf.sample_losses import SAMPLE_LOSSES, SampleLoss, causal_nll, huber, seq2seq_nll, squared_error
from dair_hf.sampling import EpochPairs
from dair_hf.tensor_pairs import TensorPairs


def resolve_sample_loss(sample_loss: str | SampleLoss) -> SampleLoss:
    """The callable behind a name of `SAMPLE_LOSSES`; a callable is returned as it is.

    Raises:
        ValueError: There is no such name.
    """
    if callable(sample_loss):
        return sample_loss
    if sample_loss not in SAMPLE_LOSSES:
        raise ValueError(
            f"sample_loss={sample_loss!r} is unknown; use one of {', '.join(SAMPLE_LOSSES)}, "
            "or pass a callable (outputs, labels) -> [rows]"
        )
    return SAMPLE_LOSSES[sample_loss]


def decoder_inputs_of(model: Any) -> Callable[..., Tensor] | None:
    """How an encoder-decoder shifts its labels to decoder inputs; None for every other model."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return None
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return getattr(base, "prepare_decoder_input_ids_from_labels", None)


def dropout_rates(model: Any) -> dict[str, float]:
    """The dropout that is on while a model trains: name -> rate, of its layers and of rates its modules hold."""
    rates: dict[str, float] = {}
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rates.setdefault(path.rsplit(".", 1)[-1], module.p)
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                rates.setdefault(name, value)
    return {name: rate for name, rate in rates.items() if rate > 0}


def refuse_unsupported(
    args: DAIRConfig,
    kwargs: Mapping[str, Any],
    train_dataset: Any,
    sample_loss: SampleLoss,
    objective: Any = None,
    augmenter: Any = None,
    model: Any = None,
) -> None:
    """Refuse settings that cannot hold together with pairs; the message names both and the remedy.

    Raises:
        ValueError: For the first such combination.
    """
    if args.uses_features and sample_loss in (squared_error, huber):
        raise ValueError(
            f"regularizer={args.regularizer!r} and sample_loss={sample_loss.__name__} cannot hold together: a "
            "regression has no output distribution to compare; use a regularizer of the losses, sq or l1"
        )
    if objective is not None:
        for name, is_set in (
            (f"gradient_accumulation_steps={args.gradient_accumulation_steps}", args.gradient_accumulation_steps > 1),
            (f"{args.world_size} processes", args.world_size > 1),
            (f"normalization={args.normalization!r}", args.normalization != "pair"),
            (f"regularizer={args.regularizer!r} with method='dair'", args.uses_features),
        ):
            if is_set:
                raise ValueError(
                    f"objective={type(objective).__name__} and {name} cannot hold together: it is a function of one "
                    "whole batch; use one process, a larger per_device_train_batch_size, normalization='pair' and a "
                    "regularizer of the losses"
                )
    _refuse_unsupported_chunks(args, sample_loss, objective)
    _refuse_unsupported_cache(args, model)
    _refuse_unsupported_packing(args, sample_loss, model)
    _refuse_unsupported_sharding(args, augmenter, model)
    for name in ("fsdp", "deepspeed"):
        if augmenter is not None and (value := getattr(args, name, None)):
            raise ValueError(
                f"augmenter and {name}={value!r} cannot hold together: partners are made with the whole model on each "
                "rank; use DDP, or make the partners beforehand"
            )
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} GPUs are visible to one process, which would enter torch.nn.DataParallel and split pairs "
            "apart; start with `accelerate launch`, or set CUDA_VISIBLE_DEVICES to one GPU"
        )
    if args.dataloader_persistent_workers and isinstance(train_dataset, (EpochPairs, TensorPairs)):
        raise ValueError(
            "dataloader_persistent_workers=True would keep showing the first epoch's partners of "
            f"{type(train_dataset).__name__}; leave it at its default, False"
        )
    launcher = args.accelerator_config
    if launcher.dispatch_batches:
        raise ValueError(
            "accelerator_config dispatch_batches=True joins batches, which differ in length and number of views here; "
            "leave it unset: every process then reads its own batches"
        )
    launcher.dispatch_batches = False  # None would mean True for a stream
    if args.world_size > 1 and not launcher.even_batches:
        raise ValueError(
            f"accelerator_config even_batches=False on {args.world_size} processes leaves some without a batch in the "
            "last step, which then waits for ever; leave it unset: rows repeated to fill up count nothing"
        )
    if kwargs.get("compute_loss_func") is not None:
        raise ValueError("compute_loss_func reduces over the batch, which DAIR does itself; pass `sample_loss` instead")


def _refuse_unsupported_chunks(args: DAIRConfig, sample_loss: SampleLoss, objective: Any) -> None:
    if not args.chunked_loss:
        return
    name = getattr(sample_loss, "__name__", type(sample_loss).__name__)
    for other, is_set in (
        (f"sample_loss={name}, which is none of tokens,", sample_loss not in (seq2seq_nll, causal_nll)),
        (f"regularizer={args.regularizer!r}, which compares logits,", args.uses_features),
        ("an objective of the whole batch, which may ask for logits,", objective is not None),
        (f"fsdp={args.fsdp!r}, which takes the projection apart between its uses,", bool(args.fsdp)),
        (f"deepspeed={args.deepspeed!r}, which takes the projection apart between its uses,", bool(args.deepspeed)),
    ):
        if is_set:
            raise ValueError(f"chunked_loss=True and {other} cannot hold together; set chunked_loss=False")


def _refuse_unsupported_cache(args: DAIRConfig, model: Any) -> None:
    if args.gradient_cache is None:
        return
    remedy = "the same update comes from a smaller per_device_train_batch_size and gradient_accumulation_steps"
    if value := args.deepspeed:
        raise ValueError(f"gradient_cache={args.gradient_cache} and deepspeed={value!r} cannot hold together; {remedy}")
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"gradient_cache={args.gradient_cache} and the batch norm {path!r} cannot hold together: its "
                "statistics would be those of a part of the batch; set gradient_cache=None"
            )


def _refuse_unsupported_packing(args: DAIRConfig, sample_loss: SampleLoss, model: Any) -> None:
    if not args.pair_packing:
        return
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    name = getattr(sample_loss, "__name__", type(sample_loss).__name__)
    for other, is_set in (
        (f"sample_loss={name}, which is not that of a decoder-only model,", sample_loss is not causal_nll),
        (f"attn_implementation={attention!r}, which would mask all by all,", attention not in ATTENTION_FOR_PACKING),
        ("the CPU, where these kernels have no backward pass,", args.device.type == "cpu"),
    ):
        if is_set:
            raise ValueError(
                f"pair_packing=True and {other} cannot hold together: packing needs a decoder-only model on a GPU with "
                f"attn_implementation one of {', '.join(ATTENTION_FOR_PACKING)}; elsewhere pair_group_by_length or "
                "max_tokens_per_batch saves most of the padding"
            )


def _refuse_unsupported_sharding(args: DAIRConfig, augmenter: Any, model: Any) -> None:
    """What needs whole weights, or other numbers of forwards on the ranks, of a model sharded while it was loaded."""
    if not getattr(model, "is_distributed_loading_by_transformers", False):
        return
    for name, is_set in (
        ("chunked_loss=True", args.chunked_loss),
        ("forward_mode='separate'", args.forward_mode == "separate"),
        ("pair_dropout='shared'", args.pair_dropout == "shared"),
        ("augmenter", augmenter is not None),
    ):
        if is_set:
            raise ValueError(
                f"{name} and a model loaded with distributed_config cannot hold together: its weights are spread over "
                f"the ranks; leave {name.split('=')[0]} at its default, or load the model whole and use DDP"
            )
