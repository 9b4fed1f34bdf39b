"""State that a forward beside training must not change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dair_hf.losses.model_state import evaluation_mode

CPU = torch.device("cpu")


class Counted(nn.Dropout):
    """Module whose `train` has a side effect."""

    calls = 0

    def train(self, mode: bool = True) -> nn.Module:
        self.calls += 1
        return super().train(mode)


@pytest.mark.parametrize("fails", [False, True])
def test_modes_and_random_state_are_restored_without_side_effects(fails: bool) -> None:
    model = nn.Sequential(Counted(0.5), nn.BatchNorm1d(3))
    model[1].eval()  # frozen by the user
    before, state = [module.training for module in model.modules()], torch.get_rng_state()
    try:
        with evaluation_mode(model, CPU):
            assert not any(module.training for module in model.modules())
            torch.rand(3)
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert [module.training for module in model.modules()] == before == [True, True, False]
    assert torch.equal(torch.get_rng_state(), state)
    assert model[0].calls == 0
