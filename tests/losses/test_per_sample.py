"""Per-row losses against numpy float64, value and gradient."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dair_hf.losses.per_sample import (
    SAMPLE_LOSSES,
    binary_cross_entropy,
    causal_nll,
    cross_entropy,
    huber,
    multi_label,
    seq2seq_nll,
    soft_score,
    squared_error,
)

LABELS = np.array([[2, 4, 1, -100], [3, -100, -100, -100], [0, -100, 2, 2]])


def outputs(values: np.ndarray, dtype: torch.dtype = torch.float64) -> SimpleNamespace:
    return SimpleNamespace(logits=torch.tensor(values, dtype=dtype, requires_grad=True))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def numpy_nll(logits: np.ndarray, labels: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of every row and the gradient of their sum, token by token."""
    losses, slopes = np.zeros(len(labels)), np.zeros_like(logits)
    for row, column in np.ndindex(labels.shape):
        label, position = labels[row, column], column - shift
        if label == -100 or position < 0:
            continue
        losses[row] -= log_softmax(logits[row, position])[label]
        slopes[row, position] += np.exp(log_softmax(logits[row, position])) - np.eye(logits.shape[-1])[label]
    return losses, slopes


@pytest.mark.parametrize(("loss", "shift"), [(seq2seq_nll, 0), (causal_nll, 1)])
def test_sequence_losses_and_gradients_match_numpy(loss: object, shift: int) -> None:
    logits = np.random.default_rng(0).normal(size=(3, 4, 5)) * 3
    given = outputs(logits)
    value = loss(given, torch.tensor(LABELS))  # type: ignore[operator]
    losses, slopes = numpy_nll(logits, LABELS, shift)
    np.testing.assert_allclose(value.detach().numpy(), losses, rtol=1e-12)
    value.sum().backward()
    np.testing.assert_allclose(given.logits.grad.numpy(), slopes, atol=1e-12)


def test_the_shift_matters() -> None:
    given, labels = outputs(np.random.default_rng(0).normal(size=(3, 4, 5))), torch.tensor(LABELS)
    assert (seq2seq_nll(given, labels) - causal_nll(given, labels)).abs().min() > 1e-3
    assert causal_nll.shifts_labels is True  # type: ignore[attr-defined]
    assert not hasattr(seq2seq_nll, "shifts_labels")


@pytest.mark.parametrize("loss", [seq2seq_nll, causal_nll])
def test_a_row_without_a_target_is_zero_and_connected(loss: object) -> None:
    given = outputs(np.ones((2, 3, 4)))
    value = loss(given, torch.tensor([[-100] * 3, [-100, 1, 2]]))  # type: ignore[operator]
    assert value[0].item() == 0.0
    assert value[1].item() > 0
    value[0].backward()
    assert given.logits.grad.abs().sum().item() == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_converted_before_the_softmax(dtype: torch.dtype) -> None:
    logits = np.random.default_rng(1).normal(size=(3, 4, 5)) * 4
    rounded = torch.tensor(logits, dtype=dtype)
    value = seq2seq_nll(SimpleNamespace(logits=rounded), torch.tensor(LABELS))
    assert value.dtype == torch.float32
    np.testing.assert_allclose(value.numpy(), numpy_nll(rounded.double().numpy(), LABELS, 0)[0], rtol=1e-5)


def test_cross_entropy_matches_numpy_and_ignores_absent_targets() -> None:
    logits = np.random.default_rng(2).normal(size=(3, 4))
    value = cross_entropy(outputs(logits), torch.tensor([1, -100, 3]))
    expected = -log_softmax(logits)
    np.testing.assert_allclose(value.detach().numpy(), [expected[0, 1], 0.0, expected[2, 3]], rtol=1e-12)


def test_binary_cross_entropy_matches_numpy_for_hard_and_soft_targets() -> None:
    logits, labels = np.array([-30.0, -1.0, 2.0, 30.0]), np.array([0.0, 1.0, 0.25, 0.0])
    probability = 1 / (1 + np.exp(-logits))
    expected = labels * np.logaddexp(0, -logits) + (1 - labels) * np.logaddexp(0, logits)
    for shape in ((4,), (4, 1)):
        given = outputs(logits.reshape(shape))
        value = binary_cross_entropy(given, torch.tensor(labels))
        np.testing.assert_allclose(value.detach().numpy(), expected, rtol=1e-12, atol=1e-14)
        value.sum().backward()
        np.testing.assert_allclose(given.logits.grad.numpy().ravel(), probability - labels, atol=1e-9)


@pytest.mark.parametrize("label", [-0.1, 1.1, 2.0, -100.0])
def test_losses_of_probabilities_are_nan_for_other_labels(label: float) -> None:
    given = outputs(np.zeros((3, 1)))
    value = binary_cross_entropy(given, torch.tensor([0.0, label, 1.0]))
    assert value.isnan().tolist() == [False, True, False]
    value[[0, 2]].sum().backward()
    assert given.logits.grad.ravel().tolist() == [0.5, 0.0, -0.5]
    several = multi_label(outputs(np.zeros((2, 2))), torch.tensor([[0.0, 1.0], [0.5, label]]))
    assert several.isnan().tolist() == [False, True]


def test_soft_score_value_and_gradient_match_numpy() -> None:
    logits = np.random.default_rng(3).normal(size=(3, 5)) * 3
    scores = np.array([[0.0, 0.7, 0.2, 0.0, 0.0], [0.0] * 5, [0.0, 0.0, 0.0, 0.0, 1.0]])
    given = outputs(logits)
    value = soft_score(given, torch.tensor(scores))
    expected = [
        -sum(s * x for s, x in zip(row, log_softmax(z), strict=True)) for row, z in zip(scores, logits, strict=True)
    ]
    np.testing.assert_allclose(value.detach().numpy(), expected, rtol=1e-12)
    assert value[1].item() == 0.0  # no answer in the vocabulary: no target, but connected
    value.sum().backward()
    probabilities = np.exp([log_softmax(row) for row in logits])
    np.testing.assert_allclose(
        given.logits.grad.numpy(), scores.sum(1, keepdims=True) * probabilities - scores, atol=1e-9
    )
    hard = cross_entropy(outputs(logits), torch.tensor([1, 2, 4]))
    assert value[2].item() == pytest.approx(hard[2].item(), abs=1e-12)
    assert abs(value[0].item() - hard[0].item()) > 1e-3


def test_losses_of_several_outputs_are_means_over_them() -> None:
    logits, labels = np.random.default_rng(4).normal(size=(3, 4)), np.eye(3, 4)
    given = outputs(logits)
    value = multi_label(given, torch.tensor(labels))
    each = labels * np.logaddexp(0, -logits) + (1 - labels) * np.logaddexp(0, logits)
    np.testing.assert_allclose(value.detach().numpy(), each.mean(1), rtol=1e-12)
    value.sum().backward()
    np.testing.assert_allclose(given.logits.grad.numpy(), (1 / (1 + np.exp(-logits)) - labels) / 4, atol=1e-12)
    squares = squared_error(outputs(logits), torch.tensor(labels)).detach().numpy()
    np.testing.assert_allclose(squares, ((logits - labels) ** 2).mean(1), rtol=1e-12)


def test_regression_losses_match_numpy() -> None:
    predictions, labels = np.array([0.0, 0.5, 4.0, -3.0]), np.array([0.0, 0.0, 1.0, 1.0])
    error = predictions - labels
    given = outputs(predictions[:, None])
    np.testing.assert_allclose(squared_error(given, torch.tensor(labels)).detach().numpy(), error**2)
    wanted = np.where(np.abs(error) <= 1, error**2 / 2, np.abs(error) - 0.5)
    value = huber(given, torch.tensor(labels))
    np.testing.assert_allclose(value.detach().numpy(), wanted)
    value.sum().backward()
    np.testing.assert_allclose(given.logits.grad.numpy().ravel(), np.clip(error, -1, 1))


def test_named_losses_return_one_value_per_row() -> None:
    tokens = torch.tensor(LABELS)
    sequences, scores = ("seq2seq", "causal", "token_classification"), ("multi_label", "soft_score")
    labels = {**dict.fromkeys(sequences, tokens), "classification": torch.tensor([1, 0, 2])}
    labels.update(dict.fromkeys(scores, torch.eye(3, 4)))
    for name, loss in SAMPLE_LOSSES.items():
        classes = dict.fromkeys(("classification", *scores), (3, 4))
        shape = {**dict.fromkeys(sequences, (3, 4, 5)), **classes}.get(name, (3, 1))
        assert loss(outputs(np.zeros(shape)), labels.get(name, torch.tensor([0.0, 1.0, 1.0]))).shape == (3,)
