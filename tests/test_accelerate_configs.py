"""Launcher configurations: accelerate knows every key, and those for a CPU start the right number of processes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from accelerate.commands import launch
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.utils import DeepSpeedPlugin, DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

from tests.fixtures.launching import forked
from tests.fixtures.paths import ROOT

FOLDER = ROOT / "recipes" / "accelerate_configs"
CONFIGS = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
# Name -> distributed type, total number of processes, machines.
EXPECTED = {
    "cpu": (DistributedType.NO, 1, 1),
    "cpu_processes": (DistributedType.MULTI_GPU, 2, 1),
    "gpu": (DistributedType.NO, 1, 1),
    "ddp": (DistributedType.MULTI_GPU, 8, 1),
    "fsdp2": (DistributedType.FSDP, 8, 1),
    "zero2": (DistributedType.DEEPSPEED, 8, 1),
    "zero3": (DistributedType.DEEPSPEED, 8, 1),
    "two_nodes": (DistributedType.MULTI_GPU, 16, 2),
}
# As a recipe does, which sets no `use_cpu`.
COUNT_RANKS = """
import sys
from pathlib import Path
from accelerate import PartialState
from dair_hf.config import DAIRConfig
DAIRConfig("unused")
DAIRConfig("unused")
Path(sys.argv[1], str(PartialState().process_index)).write_text(str(PartialState().num_processes))
PartialState().wait_for_everyone()
"""


def test_every_configuration_is_known() -> None:
    assert set(CONFIGS) == set(EXPECTED)


@pytest.mark.parametrize("name", CONFIGS)
def test_accelerate_accepts_it(name: str) -> None:
    text = CONFIGS[name].read_text()
    assert text.startswith("# ")
    config = load_config_from_file(str(CONFIGS[name]))
    assert isinstance(config, ClusterConfig)
    assert (config.distributed_type, config.num_processes, config.num_machines) == EXPECTED[name]
    unknown = set(yaml.safe_load(text)) - set(ClusterConfig.__dataclass_fields__)
    assert not unknown
    stage = re.search(r"zero_stage: (\d)", text)
    assert (stage is not None) == name.startswith("zero") and (stage is None or stage[1] == name[-1])


def test_fsdp_is_version_two() -> None:
    assert load_config_from_file(str(CONFIGS["fsdp2"])).fsdp_config["fsdp_version"] == 2


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_accepts_its_configuration(stage: int) -> None:
    """DeepSpeed reads what accelerate makes of the file as intended."""
    engine = pytest.importorskip("deepspeed.runtime.config", reason="deepspeed is not installed")
    config = load_config_from_file(str(CONFIGS[f"zero{stage}"]))
    assert set(config.deepspeed_config) <= set(DeepSpeedPlugin.__dataclass_fields__)
    plugin = DeepSpeedPlugin(**config.deepspeed_config)
    plugin.set_mixed_precision(config.mixed_precision)
    batches = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "train_batch_size": 8}
    read = engine.DeepSpeedConfig({**plugin.deepspeed_config, **batches, "gradient_clipping": 1.0})
    assert read.zero_optimization_stage == stage
    assert read.bfloat16_config.enabled and not read.float16_config.enabled
    assert (read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps) == (4, 2)
    assert read.zero_config.offload_param is None or read.zero_config.offload_param.device == "none"


def count_ranks(options: list[str], folder: Path, ranks: int) -> tuple[dict[str, str], str]:
    """Return the number of ranks that each rank sees, and what was said, with the variables of `accelerate launch`."""
    given = launch.launch_command_parser().parse_args([*options, "--main_process_port", "0", "script.py"])
    given, *_ = launch._validate_launch_command(given)
    variables = prepare_multi_gpu_env(given) if given.use_fsdp else prepare_simple_launcher_cmd_env(given)[1]
    added = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    done = forked("-c", COUNT_RANKS, folder, ranks=ranks, **added, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr[-2000:]
    return {path.name: path.read_text() for path in folder.iterdir()}, done.stderr


def test_fsdp_starts_all_ranks_on_a_cpu(tmp_path: Path) -> None:
    options = ["--config_file", str(CONFIGS["fsdp2"]), "--num_processes", "2", "--num_machines", "1"]
    found, said = count_ranks(options, tmp_path, ranks=2)
    assert found == {"0": "2", "1": "2"} and "one process only" not in said


def test_one_process_in_place_of_several_is_said_once(tmp_path: Path) -> None:
    found, said = count_ranks(["--cpu", "--num_processes", "2"], tmp_path, ranks=1)
    assert (found, said.count("--launch cpu_processes")) == ({"0": "1"}, 1)
