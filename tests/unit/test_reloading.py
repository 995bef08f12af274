"""The model that is loaded from the published files is the one that was trained and measured."""

import json
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, DataCollatorWithPadding

from tests.messages import refuses
from tests.tiny_llama import write_questions, write_tiny_llama
from tests.tiny_session import NAME, result_of, trainer_over
from train_func.errors import InvalidInput
from train_func.published_model import loaded
from train_func.run import Run
from train_func.tasks import CausalLM
from train_func.wire.records import RunRecord
from train_func.worker import Session

pytestmark = pytest.mark.usefixtures("plain_process")


@pytest.fixture
def bert(a_record):
    return a_record(epochs=1)


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """The fields of a task with a tiny Llama, over 20 rows."""
    folder = tmp_path_factory.mktemp("llama")
    write_tiny_llama(folder / "model")
    return {"model": str(folder / "model"), "dataset": write_questions(folder / "rows.jsonl", 20), "max_length": 256}


@pytest.fixture
def llama(questions, store):
    def make(**fields):
        run = Run(task=CausalLM(**questions, **fields), epochs=1, learning_rate=1e-2)
        made_of = {"name": NAME, "generation": 1, "store": store.address, "function": "f", "source_sha256": "00"}
        return RunRecord(run=run, **made_of)

    return make


def train(record, before=lambda model: model, after=lambda model: None, collate=lambda tokenizer: None):
    """The trained model; ``before`` and ``after`` its training a function does what it likes."""
    with Session(record.parameters()) as session:
        model, tokenizer = session.model()
        model = before(model)
        others = {"processing_class": tokenizer, "data_collator": collate(tokenizer)}
        trainer = trainer_over(session, model, *session.data(tokenizer), **others)
        trainer.train()
        after(model)
        session.publish(trainer)
    return model


def fetched(store, folder):
    for name in result_of(store)["files"]:
        (folder / name).write_bytes(store.get(f"{NAME}/model/{name}").data)


def turned(model):
    """A change of what the model computes that is in no file."""
    model.classifier.register_forward_hook(lambda module, given, logits: -logits)
    return model


def test_a_model_that_is_loaded_as_another_one_is_refused_before_its_first_step(bert, store):
    steps = []

    def changed(model):
        model.register_forward_hook(lambda *of: steps.append(model.training))
        return turned(model)

    with refuses(cause="code"):
        train(bert, before=changed)
    assert True not in steps
    assert not store.names(f"{NAME}/model")


def test_no_metrics_are_published_of_a_model_that_was_changed_after_its_training(bert, store):
    train(bert, after=turned)
    found = result_of(store)
    assert found["metrics"] == {}
    assert "load()" in found["note"]
    assert "model.safetensors" in found["files"]  # it is not lost


def test_a_loop_of_its_own_is_told_of_a_model_that_is_loaded_as_another_one(bert, store):
    for change, is_told in ((lambda model: model, False), (turned, True)):
        with Session(bert.parameters()) as session:
            model, tokenizer = session.model()
            session.data(tokenizer)
            session.publish(change(model))
        assert ("load()" in result_of(store).get("note", "")) is is_told
        store.delete(f"{NAME}/result.json")


def test_a_model_that_fits_no_second_time_is_published_with_a_note_and_its_metrics(bert, store, monkeypatch, capsys):
    monkeypatch.setenv("TRAIN_FUNC_MEMORY", str(2**20))
    train(bert)
    assert result_of(store)["metrics"]["rows"] == 8
    assert "memory" in capsys.readouterr().out


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("padding", ["longest", "max_length"])
def test_what_a_model_computes_of_padding_says_nothing_of_it(llama, store, padding, is_changed):
    record = llama()

    def left_padded(tokenizer):
        tokenizer.padding_side = "left"
        return DataCollatorForSeq2Seq(tokenizer, padding=padding, max_length=300)

    def eager(model):
        of_padding_other = AutoModelForCausalLM.from_pretrained(record.run.task.model, attn_implementation="eager")
        if is_changed:
            of_padding_other.lm_head.register_forward_hook(lambda module, given, logits: -logits)
        return of_padding_other

    if is_changed:
        with pytest.raises(InvalidInput):
            train(record, before=eager, collate=left_padded)
    else:
        train(record, before=eager, collate=left_padded)
        assert result_of(store)["metrics"]


def of_another_base(model):
    with torch.no_grad():
        for name, of in model.named_parameters():
            if "down_proj" in name and "lora" not in name:
                of.mul_(-3)
    return model


def test_adapters_that_were_trained_on_a_quantised_base_are_published_with_a_note_and_their_metrics(
    llama, store, capsys
):
    def quantised(model):
        base = model.get_base_model()
        base.is_quantized, base.hf_quantizer = True, SimpleNamespace(is_trainable=True)  # as transformers marks it
        return of_another_base(model)

    train(llama(lora_rank=4), before=quantised)
    assert result_of(store)["metrics"]["rows"] == 4
    assert "quantised" in capsys.readouterr().out


def test_a_base_that_is_not_the_one_of_the_adapters_is_refused_before_the_first_step(llama, store):
    with pytest.raises(InvalidInput):
        train(llama(lora_rank=4), before=of_another_base)


@pytest.mark.parametrize("start", [pytest.param("pissa_niter_2", marks=pytest.mark.slow), "olora"])
def test_adapters_that_begin_with_a_part_of_their_base_are_published_as_adapters_of_the_whole(
    llama, store, tmp_path, start
):
    record = llama()

    def adapted(model):
        config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=start)
        return get_peft_model(model, config)

    trained = train(record, before=adapted)
    assert result_of(store)["metrics"]["rows"] == 4
    fetched(store, tmp_path)
    again = loaded(tmp_path, AutoModelForCausalLM, record.run.task.model)
    ids = torch.arange(2, 66).reshape(2, 32)
    with torch.no_grad():
        expected = type(trained).forward(trained.eval(), ids).logits
        torch.testing.assert_close(again.eval()(ids).logits, expected, rtol=0, atol=1e-3)


def test_the_tokenizer_that_rows_were_encoded_with_is_published_where_the_trainer_has_none(bert, store, tmp_path):
    with Session(bert.parameters()) as session:
        model, _ = session.model()
        tokenizer = AutoTokenizer.from_pretrained(bert.run.task.model, do_lower_case=False, model_max_length=77)
        collator = DataCollatorWithPadding(tokenizer)
        trainer = trainer_over(session, model, *session.data(tokenizer), data_collator=collator)
        trainer.train()
        session.publish(trainer)
    settings = json.loads(store.get(f"{NAME}/model/tokenizer_config.json").data)
    assert settings["model_max_length"] == 77


def test_how_a_function_has_its_model_generate_is_published_with_adapters(llama, store, tmp_path):
    record = llama(lora_rank=4)

    def changed(model):
        model.get_base_model().generation_config.max_new_tokens = 7
        return model

    train(record, before=changed)
    fetched(store, tmp_path)
    assert loaded(tmp_path, AutoModelForCausalLM, record.run.task.model).generation_config.max_new_tokens == 7


def test_adapters_whose_base_is_changed_for_good_are_refused_with_the_remedy(llama, store):
    def adapted(model):
        model.peft_config["default"].init_lora_weights = "loftq"  # as LoraConfig has it where bitsandbytes is installed
        return model

    with pytest.raises(InvalidInput, match="loftq"):
        train(llama(lora_rank=4), before=adapted)
