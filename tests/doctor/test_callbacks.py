"""Callbacks: a training is as without one, and a step that breaks is named before its gradient is used."""

import importlib
import logging
import math

import numpy as np
import pytest

from gradtricks.doctor.flight import BrokenTrainingError, ReplayedError, replayed

NUM_BATCHES, SIZE = 6, 2
X = np.random.default_rng(0).normal(size=(NUM_BATCHES * SIZE, 4)).astype(np.float32)
FINE = np.full((NUM_BATCHES * SIZE, 1), 100, np.float32)
BROKEN = np.concatenate([FINE[: 3 * SIZE], [[-1e6]], FINE[3 * SIZE + 1 :]])  # of the fourth batch


def library(name):
    """Return a library and the callback's module for it."""
    why = f"{name} isn't installed here; the weekly workflow installs it and runs this"
    found = pytest.importorskip(name, reason=why)
    return found, importlib.import_module(f"gradtricks.doctor.callbacks.{name}")


@pytest.fixture
def told(caplog):
    """What the library's own logger is told."""
    with caplog.at_level(logging.ERROR):
        for name in ("transformers", "lightning.pytorch"):
            logging.getLogger(name).addHandler(caplog.handler)
        yield caplog
        for name in ("transformers", "lightning.pytorch"):
            logging.getLogger(name).removeHandler(caplog.handler)


def check_broken(raised, told, step, kind="GT201"):
    cause = raised.value.diagnosis.causes[0]
    assert (cause.id, "sqrt" in cause.place.code) == (kind, True)
    assert f"gradient of step {step} isn't finite" in told.text


def check_replayed(raised, train):
    """Whatever batches a training gets, the broken update is the one that is done again."""
    before = replayed.set(raised.value.snapshot)
    try:
        with pytest.raises(ReplayedError) as again:
            train()
    finally:
        replayed.reset(before)
    assert again.value.diagnosis.causes[0].place == raised.value.diagnosis.causes[0].place


# Hugging Face.


def trainer_of(torch, folder, shift, *, num_accumulated=1, **options):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Rooted(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            shift = inputs.pop("shift")
            return (model(**inputs).loss + shift).sqrt().mean()

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    tokens = torch.arange(NUM_BATCHES * SIZE * 5).reshape(-1, 5) % 11
    data = [
        {"input_ids": t, "labels": t, "shift": torch.from_numpy(s)}
        for t, s in zip(tokens, shift, strict=True)
    ]
    told = TrainingArguments(
        str(folder),
        per_device_train_batch_size=SIZE,
        gradient_accumulation_steps=num_accumulated,
        num_train_epochs=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        train_sampling_strategy="sequential",
        **options,
    )
    return Rooted(model, told, train_dataset=data)


def weights(model):
    return {name: value.tolist() for name, value in model.state_dict().items()}


@pytest.mark.filterwarnings("ignore")  # of other people's libraries
@pytest.mark.parametrize("options", [{}, {"num_accumulated": 2}, {"bf16": True}], ids=str)
def test_a_trainer_of_hugging_face_is_watched_in_torch(in_torch, tmp_path, told, options):
    _, callbacks = library("transformers")
    torch, num_accumulated = in_torch.framework, options.get("num_accumulated", 1)
    plain = trainer_of(torch, tmp_path, FINE, **options)
    plain.train()
    watched = trainer_of(torch, tmp_path, FINE, **options)
    callback = callbacks.FlightCallback(watched, folder=tmp_path)
    watched.add_callback(callback)
    watched.train()
    assert weights(watched.model) == weights(plain.model)
    assert len(callback.recorder.norms) == callback.recorder.num_steps == NUM_BATCHES // num_accumulated
    assert all(0 < norm < math.inf for norm in callback.recorder.norms)

    broken = trainer_of(torch, tmp_path, BROKEN, **options)
    broken.add_callback(callbacks.FlightCallback(broken, folder=tmp_path))
    with pytest.raises(BrokenTrainingError) as raised:
        broken.train()
    check_broken(raised, told, 3 // num_accumulated)
    assert all(p.isfinite().all() for p in broken.model.parameters())
    check_replayed(raised, watched.train)


def grpo_trainer(torch, folder, *, broken=False):
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    class Rooted(GRPOTrainer):
        def _compute_loss(self, *given):
            loss = super()._compute_loss(*given)
            return loss + (0 * loss).sqrt() if broken and self.state.global_step == 2 else loss

    words = {word: n for n, word in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefgh"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "unk")}
    torch.manual_seed(0)
    sizes = {"vocab_size": len(words), "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    told = GRPOConfig(
        str(folder),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=6,
        max_steps=4,
        learning_rate=0.01,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    return Rooted(
        GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1, pad_token_id=0)),
        reward_funcs=lambda completions, **_: [float(answer.count("a")) for answer in completions],
        args=told,
        train_dataset=Dataset.from_dict({"prompt": ["a b", "b c", "c d", "d e"] * 4}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special),
    )


@pytest.mark.filterwarnings("ignore")  # of other people's libraries
def test_a_trainer_of_trl_is_watched_in_torch(in_torch, tmp_path, told):
    pytest.importorskip(
        "trl", reason="trl isn't installed here; the weekly workflow installs it and runs this"
    )
    (_, callbacks), torch = library("transformers"), in_torch.framework
    plain, watched, broken = (grpo_trainer(torch, tmp_path, broken=each) for each in (False, False, True))
    for each in (watched, broken):
        each.add_callback(callbacks.FlightCallback(each, folder=None))
    for each in (plain, watched):
        torch.manual_seed(1)  # of what is drawn as an answer
        each.train()
    assert weights(watched.model) == weights(plain.model)
    with pytest.raises(BrokenTrainingError) as raised:
        broken.train()
    check_broken(raised, told, 2, kind="GT202")


# Lightning.


def lightning_module(torch, *, by_hand=False):
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
            )
            self.automatic_optimization = not by_hand

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.1)

        def training_step(self, batch):
            x, shift = batch
            loss = (self.layer(x) ** 2 + shift).sqrt().mean()
            self.log("loss", loss)
            if by_hand:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

    torch.manual_seed(0)
    return Module()


def fit_lightning(torch, folder, shift, callbacks, *, by_hand=False, **options):
    from lightning.pytorch import Trainer

    module = lightning_module(torch, by_hand=by_hand)
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(shift))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        default_root_dir=folder,
        callbacks=callbacks,
        **quiet,
        **options,
    )
    torch.manual_seed(1)
    try:
        trainer.fit(module, torch.utils.data.DataLoader(data, SIZE))
    finally:
        assert "training_step" not in vars(trainer.strategy)
    return weights(module)


@pytest.mark.filterwarnings("ignore")  # of other people's libraries
@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"}, {"by_hand": True}],
    ids=str,
)
def test_a_trainer_of_lightning_is_watched_in_torch(in_torch, tmp_path, told, options):
    _, callbacks = library("lightning")
    torch, num_accumulated = in_torch.framework, options.get("accumulate_grad_batches", 1)
    callback = callbacks.FlightCallback(folder=tmp_path)
    plain = fit_lightning(torch, tmp_path, FINE, [], **options)
    assert fit_lightning(torch, tmp_path, FINE, [callback], **options) == plain
    assert len(callback.recorder.norms) == callback.recorder.num_steps == NUM_BATCHES // num_accumulated

    with pytest.raises(BrokenTrainingError) as raised:
        fit_lightning(torch, tmp_path, BROKEN, [callbacks.FlightCallback(folder=tmp_path)], **options)
    check_broken(raised, told, 3 // num_accumulated)
    check_replayed(raised, lambda: fit_lightning(torch, tmp_path, FINE, [callback], **options))


# Keras.


def keras_model(tf, **options):
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input([4]), layers.Dense(8), layers.Dropout(0.3), layers.Dense(1)])

    def rooted(shift, outputs):
        return tf.sqrt(outputs**2 + shift)

    model.compile(tf.keras.optimizers.Adam(0.1), rooted, metrics=["mae"], **options)
    return model


def fit_keras(model, shift, callbacks=()):
    model.fit(X, shift, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[*callbacks])
    return [value.tolist() for value in model.get_weights()]


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}, {"jit_compile": False}], ids=str)
def test_a_fit_of_keras_is_watched_in_tensorflow(in_tensorflow, tmp_path, caplog, options):
    _, callbacks = library("keras")
    tf = in_tensorflow.framework
    plain = fit_keras(keras_model(tf, **options), FINE)
    callback, model = callbacks.FlightCallback(folder=tmp_path), keras_model(tf, **options)
    assert fit_keras(model, FINE, [callback]) == plain
    assert len(callback.recorder.norms) == callback.recorder.num_steps == NUM_BATCHES
    with pytest.raises(BrokenTrainingError) as raised:
        fit_keras(model, BROKEN, [callback])
    check_broken(raised, caplog, 3)
    check_replayed(raised, lambda: fit_keras(model, FINE, [callback]))
    # Nobody looks any more.
    assert not np.isfinite(fit_keras(model, BROKEN)[0]).all()


def test_several_steps_in_one_execution_are_refused_in_tensorflow(in_tensorflow):
    _, callbacks = library("keras")
    model = keras_model(in_tensorflow.framework, steps_per_execution=2)
    with pytest.raises(ValueError, match=r"steps_per_execution must be 1; got 2; remedy: model\.compile"):
        fit_keras(model, FINE, [callbacks.FlightCallback()])
    assert model.train_function is None
