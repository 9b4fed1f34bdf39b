"""The neighbour start moves attention to the offsets it names, and to no other."""

from __future__ import annotations

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

from dair_hf.errors import DataError
from dair_hf.modeling import start_at_neighbours

LENGTH = 7


def tiny_t5(heads=3):
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=11, d_model=12, d_kv=4, d_ff=8, num_layers=2, num_heads=heads, dropout_rate=0.0, pad_token_id=0
    )
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()


@torch.no_grad()
def attention_maps(model):
    ids = torch.arange(1, LENGTH + 1)[None]
    outputs = model(input_ids=ids, decoder_input_ids=ids, output_attentions=True)
    return outputs.encoder_attentions, outputs.decoder_attentions


def offset_of_the_peak(attention, head, rows):
    """The key that each query of `rows` attends to most, relative to the query."""
    return {int(attention[0, head, row].argmax()) - row for row in rows}


def test_the_two_heads_look_where_they_should_in_every_layer():
    model = tiny_t5()
    assert start_at_neighbours(model, 30.0) == 2
    encoder, decoder = attention_maps(model)
    for layer in range(2):
        assert offset_of_the_peak(encoder[layer], 0, range(1, LENGTH)) == {-1}
        assert offset_of_the_peak(encoder[layer], 1, range(LENGTH - 1)) == {1}
        assert offset_of_the_peak(decoder[layer], 0, range(1, LENGTH)) == {-1}
        assert offset_of_the_peak(decoder[layer], 1, range(2, LENGTH)) == {-2}


def test_the_other_heads_of_the_first_layer_and_all_other_weights_stay():
    plain, model = tiny_t5(), tiny_t5()
    start_at_neighbours(model)
    before, after = attention_maps(plain), attention_maps(model)
    for stack in (0, 1):
        torch.testing.assert_close(before[stack][0][:, 2], after[stack][0][:, 2])
        assert (before[stack][0][:, :2] - after[stack][0][:, :2]).abs().max() > 0.1
    changed = {
        name
        for (name, old), new in zip(plain.state_dict().items(), model.state_dict().values(), strict=True)
        if not torch.equal(old, new)
    }
    assert changed == {
        f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight" for stack in ("encoder", "decoder")
    }


def test_a_model_without_such_biases_is_refused():
    config = BartConfig(
        vocab_size=9, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8,
    )  # fmt: skip
    with pytest.raises(DataError, match="BartForConditionalGeneration has no relative attention biases"):
        start_at_neighbours(BartForConditionalGeneration(config))


def test_one_head_and_a_strength_that_is_no_number_are_refused():
    with pytest.raises(DataError, match="at least two heads"):
        start_at_neighbours(tiny_t5(heads=1))
    with pytest.raises(DataError, match="strength=nan must be a finite number"):
        start_at_neighbours(tiny_t5(), float("nan"))
