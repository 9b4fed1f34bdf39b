"""The logistic toy: its rows, Adam against a loop in numpy, and iterations by lambda."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from reproduction.linear_toy import PairSample
from reproduction.logistic_toy import PAPER_ITERATIONS, AdamPath, logistic_accuracy, sample_logistic, train_logistic


def test_logistic_rows() -> None:
    sample = sample_logistic(count=20_000, x_std=2.0, t1_std=0.5, t2_std=3.0)
    x, spurious = sample.original.numpy().T
    sign = 2 * sample.targets.numpy() - 1
    assert x.std() == pytest.approx(2.0, rel=0.05)
    assert (spurious - sign).std() == pytest.approx(0.5, rel=0.05)
    assert (sample.augmented.numpy()[:, 1] - spurious).std() == pytest.approx(3.0, rel=0.05)
    near = np.abs(x - 1) < 0.2
    assert sample.targets.numpy()[near].mean() == pytest.approx(1 / (1 + math.exp(-1)), abs=0.03)


def test_adam_equals_a_loop_in_numpy() -> None:
    sample = sample_logistic(count=300)
    path = train_logistic(sample, [0.5, 100.0], learning_rate=0.3, max_steps=40)
    assert len(path.gradient_norms) == 41
    features, others, y = (part.numpy() for part in sample)
    for column, dair_lambda in enumerate([0.5, 100.0]):

        def objective(weights: np.ndarray, dair_lambda: float = dair_lambda) -> float:
            left, right = (np.log1p(np.exp(-(2 * y - 1) * (view @ weights))) for view in (features, others))
            consistency = (np.sqrt(left + 1e-7) - np.sqrt(right + 1e-7)) ** 2
            return float((left / 2 + right / 2 + dair_lambda * consistency).mean())

        weights, first, second = np.zeros(2), np.zeros(2), np.zeros(2)
        for step in range(1, 41):
            shifts = 1e-6 * np.eye(2)
            gradient = np.array([(objective(weights + h) - objective(weights - h)) / 2e-6 for h in shifts])
            assert path.gradient_norms[step - 1, column].item() == pytest.approx(np.linalg.norm(gradient), rel=1e-4)
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            weights = weights - 0.3 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        np.testing.assert_allclose(path.weights[column].numpy(), weights, atol=1e-5)


def test_iterations_grow_with_lambda_as_in_the_paper() -> None:
    lambdas = list(PAPER_ITERATIONS)
    sample = sample_logistic(count=1_000)
    path = train_logistic(sample, lambdas)
    iterations = path.iterations()
    assert None not in iterations
    counts, paper = np.array(iterations, dtype=float), np.array(list(PAPER_ITERATIONS.values()), dtype=float)
    ranks = [values.argsort().argsort() for values in (counts, paper)]
    assert np.corrcoef(*ranks)[0, 1] > 0.85
    assert counts[-1] > 2 * counts[0]
    assert counts[-2] > counts[0]
    assert (np.diff(counts[4:]) > 0).all()
    squared_rule = np.array(path.iterations(10**-3.5), dtype=float)
    assert np.abs(np.log(squared_rule / paper)).mean() < math.log(1.4)
    # With a large lambda the model ignores the shortcut, and predicts as well at test as x allows.
    accuracy = logistic_accuracy(path, sample)
    assert accuracy[0] < 0.4 < 0.6 < accuracy[-1]
    assert abs(path.weights[-1, 1]) < 0.01


def test_iterations_are_the_first_below_the_tolerance() -> None:
    path = AdamPath(torch.tensor([[1.0, 1.0], [0.1, 0.5], [0.3, 0.4], [0.05, 0.3]]), torch.zeros(2, 2))
    assert path.iterations(0.2) == [1, None]
    assert path.iterations(2.0) == [0, 0]


def test_accuracy_at_test_by_hand() -> None:
    sample = PairSample(torch.tensor([[1.0, 5.0], [-3.0, 5.0]]).double(), torch.zeros(2, 2), torch.tensor([1.0, 0.0]))
    # Models (1, 0) and (1, 2) with labels 1 and 0: logits 1, -3 and 1 - 2, -3 + 2.
    path = AdamPath(torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [1.0, 2.0]]).double())
    sample = sample._replace(targets=sample.targets.double())
    assert logistic_accuracy(path, sample) == [1.0, 0.5]
