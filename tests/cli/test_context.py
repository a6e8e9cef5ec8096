"""The options of the context of a result."""

from pathlib import Path

import pytest

from prober.cli.context import ContextOptions
from prober.config.problems import ConfigError
from prober.results.result_file import to_json
from tests.commands import prober
from tests.results.samples import sweep


def test_facts_flags_and_gpus_are_fields_of_the_target() -> None:
    """`flags.NAME` is a flag of the engine; blanks around a name and its value do not count."""
    facts = ["precision=bfloat16", "max_batch=256", "flags.dtype=half", "flags.block_size=16", "gpu = NVIDIA L4"]
    fields = ContextOptions(facts, 2, 1.5).fields("sweep")
    spec = fields["context"]
    assert spec.configured == {"gpu": "NVIDIA L4", "precision": "bfloat16", "max_batch": "256"}
    assert spec.flags == {"block_size": "16", "dtype": "half"}
    assert fields["gpus"] == {"count": 2, "price_per_hour": 1.5}


def test_a_config_json_has_facts_and_the_data_of_a_decode_step(tmp_path: Path) -> None:
    """A quantised one says how; the size of its weights is not known."""
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "torch_dtype": "bfloat16",'
        '"num_key_value_heads": 8, "vocab_size": 128256, "intermediate_size": 14336}'
    )
    spec = ContextOptions(fact=[f"config_file={tmp_path / 'config.json'}"]).spec("sweep")
    assert [(fact.name, fact.value) for fact in spec.checkpoint_facts] == [("precision", "bfloat16")]
    assert spec.decode_model is not None
    assert spec.decode_model.active_parameters == pytest.approx(7.5e9, rel=0.01)
    (tmp_path / "config.json").write_text(
        '{"torch_dtype": "float16", "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}'
    )
    spec = ContextOptions(fact=[f"config_file={tmp_path / 'config.json'}"]).spec("sweep")
    assert ("quantization", "awq, 4 bit, groups of 128") in [(fact.name, fact.value) for fact in spec.checkpoint_facts]
    assert spec.decode_model is None


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ("precision", "prober gate: --fact 'precision': has no '='; write precision=bfloat16"),
        ("preciosn=1", 'prober gate: --fact.preciosn: unknown key "preciosn"; did you mean "precision"?'),
        ("config_file=/no/such", "prober gate: --fact.config_file: cannot be read: [Errno 2]"),
    ],
)
def test_mistakes_name_the_option_and_the_remedy(fact: str, message: str) -> None:
    """Of one fact among others."""
    with pytest.raises(ConfigError) as raised:
        ContextOptions(["tokenizer=llama-3", fact]).spec("gate")
    assert message in str(raised.value)


def test_a_report_adds_facts_and_a_price_and_a_plan_refuses_gpus_in_dispute(tmp_path: Path) -> None:
    """Facts of the file stay visible beside what is added."""
    file = tmp_path / "result.json"
    file.write_text(to_json(sweep()))
    shown = prober("report", str(file), "--gpus", "4", "--gpu-price", "2", "--fact", "tokenizer=llama-3")
    assert "Sources disagree on GPUs: 2 (the file) but 4 (options of this report)." in shown.stdout
    assert "| tokenizer | llama-3 (options of this report) |" in shown.stdout
    assert "No cost is stated: the number of GPUs is in dispute" in shown.stdout
    assert "Rollback: low." in shown.stdout
    stated = prober("report", str(file), "--fact", "rollback=a restart of 3 minutes")
    assert "Rollback: a restart of 3 minutes." in stated.stdout
    written = prober("report", str(file), "--gpus", "4", "--format", "json")
    file.write_text(written.stdout)
    planned = prober("plan", "--sweep", str(file), "--peak", "5/s")
    assert planned.returncode == 2
    assert "the number of GPUs is in dispute, 2 (the file) but 4 (options of this report)" in planned.stderr
    assert "--gpus-per-instance" in planned.stderr
