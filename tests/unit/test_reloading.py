"""The model that is loaded from the published files is the one that was trained and measured."""

import json
from types import SimpleNamespace

import pytest
import torch
from datasets.distributed import split_dataset_by_node
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    TrainingArguments,
)

from tests.runs import a_run
from tests.tiny_llama import write_questions, write_tiny_llama
from tests.tiny_model import write_tiny_model
from train_func.errors import InvalidInput
from train_func.published_model import loaded
from train_func.run import Run
from train_func.tasks import CausalLM
from train_func.wire.records import RunRecord
from train_func.worker import Session, Trainer

pytestmark = pytest.mark.usefixtures("plain_process")
NAME = "a-run-0123"
TEXTS = ("tasty fresh friendly", "terrible cold rude")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    write_tiny_model(folder / "model")
    rows = [{"text": f"the food was {TEXTS[i % 2]} {i}", "label": "ab"[i % 2]} for i in range(20)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return a_run(model=str(folder / "model"), dataset=str(folder / "rows.jsonl"), epochs=1)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    write_tiny_llama(folder / "model")
    rows = write_questions(folder / "rows.jsonl", 20)

    def make(**fields):
        task = CausalLM(model=str(folder / "model"), dataset=rows, max_length=256, **fields)
        return Run(task=task, epochs=1, learning_rate=1e-2)

    return make


def record_of(run, store):
    return RunRecord(run=run, name=NAME, generation=1, store=store.address, function="train_func", source_sha256="00")


def train(run, store, before=lambda model: model, after=lambda model: None, collate=lambda tokenizer: None):
    """The trained model; ``before`` and ``after`` its training a function does what it likes."""
    with Session(record_of(run, store).parameters()) as session:
        model, tokenizer = session.model()
        model = before(model)
        train_rows, held_out = session.data(tokenizer)
        part = split_dataset_by_node(session.plan(train_rows), session.rank, session.world_size)
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**session.arguments()),
            train_dataset=part,
            eval_dataset=held_out,
            processing_class=tokenizer,
            data_collator=collate(tokenizer),
        )
        trainer.train()
        after(model)
        session.publish(trainer)
    return model


def published(store):
    return json.loads(store.get(f"{NAME}/result.json").data)


def fetched(store, folder):
    for name in published(store)["files"]:
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

    with pytest.raises(InvalidInput) as refused:
        train(bert, store, before=changed)
    assert refused.value.cause == "code"
    assert True not in steps
    assert not store.names(f"{NAME}/model")


def test_no_metrics_are_published_of_a_model_that_was_changed_after_its_training(bert, store):
    train(bert, store, after=turned)
    found = published(store)
    assert found["metrics"] == {}
    assert "load()" in found["note"]
    assert "model.safetensors" in found["files"]  # it is not lost


def test_a_loop_of_its_own_is_told_of_a_model_that_is_loaded_as_another_one(bert, store):
    for change, is_told in ((lambda model: model, False), (turned, True)):
        with Session(record_of(bert, store).parameters()) as session:
            model, tokenizer = session.model()
            session.data(tokenizer)
            session.publish(change(model))
        assert ("load()" in published(store).get("note", "")) is is_told
        store.delete(f"{NAME}/result.json")


def test_a_model_that_fits_no_second_time_is_published_with_a_note_and_its_metrics(bert, store, monkeypatch, capsys):
    monkeypatch.setenv("TRAIN_FUNC_MEMORY", str(2**20))
    train(bert, store)
    assert published(store)["metrics"]["rows"] == 4
    assert "memory" in capsys.readouterr().out


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("padding", ["longest", "max_length"])
def test_what_a_model_computes_of_padding_says_nothing_of_it(llama, store, padding, is_changed):
    run = llama()

    def left_padded(tokenizer):
        tokenizer.padding_side = "left"
        return DataCollatorForSeq2Seq(tokenizer, padding=padding, max_length=300)

    def eager(model):
        of_padding_other = AutoModelForCausalLM.from_pretrained(run.task.model, attn_implementation="eager")
        if is_changed:
            of_padding_other.lm_head.register_forward_hook(lambda module, given, logits: -logits)
        return of_padding_other

    if is_changed:
        with pytest.raises(InvalidInput):
            train(run, store, before=eager, collate=left_padded)
    else:
        train(run, store, before=eager, collate=left_padded)
        assert published(store)["metrics"]


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

    train(llama(lora_rank=4), store, before=quantised)
    assert published(store)["metrics"]["rows"] == 4
    assert "quantised" in capsys.readouterr().out


def test_a_base_that_is_not_the_one_of_the_adapters_is_refused_before_the_first_step(llama, store):
    with pytest.raises(InvalidInput):
        train(llama(lora_rank=4), store, before=of_another_base)


@pytest.mark.parametrize("start", ["pissa_niter_2", "olora"])
def test_adapters_that_begin_with_a_part_of_their_base_are_published_as_adapters_of_the_whole(
    llama, store, tmp_path, start
):
    run = llama()

    def adapted(model):
        config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=start)
        return get_peft_model(model, config)

    trained = train(run, store, before=adapted)
    assert published(store)["metrics"]["rows"] == 4
    fetched(store, tmp_path)
    again = loaded(tmp_path, AutoModelForCausalLM, run.task.model)
    ids = torch.arange(2, 66).reshape(2, 32)
    with torch.no_grad():
        expected = type(trained).forward(trained.eval(), ids).logits
        torch.testing.assert_close(again.eval()(ids).logits, expected, rtol=0, atol=1e-3)


def test_the_tokenizer_that_rows_were_encoded_with_is_published_where_the_trainer_has_none(bert, store, tmp_path):
    with Session(record_of(bert, store).parameters()) as session:
        model, _ = session.model()
        tokenizer = AutoTokenizer.from_pretrained(bert.task.model, do_lower_case=False, model_max_length=77)
        rows, held_out = session.data(tokenizer)
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**session.arguments()),
            train_dataset=split_dataset_by_node(session.plan(rows), session.rank, session.world_size),
            eval_dataset=held_out,
            data_collator=DataCollatorWithPadding(tokenizer),
        )
        trainer.train()
        session.publish(trainer)
    settings = json.loads(store.get(f"{NAME}/model/tokenizer_config.json").data)
    assert settings["model_max_length"] == 77


def test_how_a_function_has_its_model_generate_is_published_with_adapters(llama, store, tmp_path):
    run = llama(lora_rank=4)

    def changed(model):
        model.get_base_model().generation_config.max_new_tokens = 7
        return model

    train(run, store, before=changed)
    fetched(store, tmp_path)
    assert loaded(tmp_path, AutoModelForCausalLM, run.task.model).generation_config.max_new_tokens == 7


def test_adapters_whose_base_is_changed_for_good_are_refused_with_the_remedy(llama, store):
    def adapted(model):
        model.peft_config["default"].init_lora_weights = "loftq"  # as LoraConfig has it where bitsandbytes is installed
        return model

    with pytest.raises(InvalidInput, match="loftq"):
        train(llama(lora_rank=4), store, before=adapted)
