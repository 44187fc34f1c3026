"""The stages of training in order: data, embed, sids, grounding, prefix_memory, finetune, blend, evaluate, export.

Here is only what feeds what: each stage names its part of the recipe and the stages it reads, and is made when first
asked for. A stage whose inputs stand is read back from its folder.

Shapes: N items, L levels, E embedding width.
"""

import json
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.model.blend import Blend, BlendWeights
from service.model.grounded_lm import GroundedLM
from service.model.prompt import PromptTemplate
from service.model.semantic_ids import SidSpace
from service.model.title_tokens import TitleTokens, text_token_ids
from training import artefacts
from training.backbone import Backbone, add_sid_tokens, check_positions, load_backbone
from training.batches import ItemTokens
from training.blended_recommender import BlendedRecommender, fit_blend
from training.compared import Studied, baselines_of
from training.config import Recipe
from training.embed import resolve_encoder, texts
from training.evaluate import Evaluation, sample, tables, warning_lines
from training.export import Exported
from training.grounding.base import GroundingContext
from training.grounding_cost import estimated_share, finetune_samples, measured_share
from training.histories import write_histories
from training.neighbours import neighbours_of
from training.next_item import alignment_of, train_next_item
from training.prefix_memory.tables import tables_fingerprint
from training.processes import ALONE, Processes
from training.recommender import BeamRecommender, Recommender
from training.sid_report import code_entropy, collision_rate
from training.stages import RunFolder, Stage, write_json
from training.teacher_forced import teacher_forced_accuracy
from training.trained_model import ModelParts, load_weights, save_weights, torch_dtype
from training.training_data import TrainingData

CHECKPOINT = "checkpoint"
FINETUNE, DONE = "finetune", "done"


class Pipeline:
    """One run of one recipe in one folder; with several ``processes`` the first calls `train`, the others `follow`."""

    def __init__(self, recipe: Recipe, run: RunFolder, cache_dir: Path, processes: Processes = ALONE) -> None:
        self.recipe, self.run, self._cache_dir, self._processes = recipe, run, cache_dir, processes

    def train(self) -> dict[str, Any]:
        """Make every stage that is missing; returns the metrics.

        Raises:
            TrainingError: a stage failed; finished stages stay and the next run goes on behind them.
        """
        with self.run.locked():
            self.exported  # noqa: B018
            self._processes.from_first(DONE)
        return self.evaluated.read_json("metrics.json")

    def follow(self) -> None:
        """Wait for the first process's word and fine-tune with it; the stages it names stand by then.

        Raises:
            PeerError: another process ended.
            TrainingError: fine-tuning failed here, or the processes do not share one folder and recipe.
        """
        while self._processes.from_first("") == FINETUNE:
            self._finetune()

    @cached_property
    def data(self) -> TrainingData:
        """Items, sequences and split."""
        data = TrainingData.of(self.recipe, self._cache_dir)
        data.describe(self.run.reporter)
        return data

    @cached_property
    def described(self) -> Stage:
        """Stage data."""
        data = self.data
        return self.run.stage(
            "data", {"data": data.dataset.fingerprint}, lambda folder: artefacts.write_data(folder, data)
        )

    @cached_property
    def embedded(self) -> Stage:
        """Stage embed."""

        def make(folder: Path) -> None:
            artefacts.write_embedding(folder, self.recipe, self.data, self.encoder_folder, self.run.reporter)

        return self.run.stage("embed", self._inputs("embedding", self.described), make)

    @cached_property
    def identified(self) -> Stage:
        """Stage sids."""

        def make(folder: Path) -> None:
            artefacts.write_sids(folder, self.recipe, self.data, self.embedding_NE, self.run.reporter)

        return self.run.stage("sids", self._inputs("sids", self.embedded), make)

    @cached_property
    def grounded(self) -> Stage:
        """Stage grounding."""

        def make(folder: Path) -> None:
            context = self._grounding_context(*self.load_backbone(self.recipe.grounding.layers))
            state_file = self.run.state_file("grounding")
            artefacts.write_rows(folder, self.recipe, context, state_file, self.run.reporter)

        model = {"spec": self.recipe.backbone.spec, "dtype": self.recipe.backbone.dtype}
        return self.run.stage("grounding", self._inputs("grounding", self.identified, model), make)

    @cached_property
    def remembered(self) -> Stage:
        """Stage prefix_memory."""

        def make(folder: Path) -> None:
            artefacts.write_memory(folder, self.recipe, self.data, self.codes_NL, self.run.reporter)

        part = self.recipe.prefix_memory
        more = {"max_items": self.recipe.prompt.max_items, "tables": tables_fingerprint(part.tables)}
        return self.run.stage("prefix_memory", self._inputs("prefix_memory", self.identified, more), make)

    @cached_property
    def finetuned(self) -> Stage:
        """Stage finetune."""

        def make(folder: Path) -> None:
            self._processes.from_first(FINETUNE)
            parts, model, result = self._finetune()
            save_weights(model, folder)
            write_json(folder / "finetune.json", result)
            context = self._grounding_context(parts.backbone, parts.space)
            artefacts.write_diagnostics(folder, context, {"finetuned": model.sid_rows})

        return self.run.stage("finetune", self._finetune_inputs(), make)

    def _finetune_inputs(self) -> dict[str, Any]:
        upstream = [self.grounded] + ([self.remembered] if self.recipe.prefix_memory.enabled else [])
        # how gradients are computed changes no weight
        more: dict[str, Any] = {
            "backbone": self.recipe.backbone.model_dump(mode="json", exclude={"gradient_checkpointing"})
        }
        more["prompt"] = self.recipe.prompt.model_dump(mode="json")
        more["upstream"] = [stage.fingerprint for stage in upstream]
        return self._inputs("finetune", self.identified, more)

    @cached_property
    def blended(self) -> Stage:
        """Stage blend."""

        def make(folder: Path) -> None:
            part = self.recipe.blend
            if not part.enabled:
                return
            split = self.data.split
            neighbours = neighbours_of(split.train, self.embedding_NE, part, self.run.reporter)
            start = BlendWeights(1.0, 0.0, 0.0, 1.0, part.temperature, part.decay, part.history)
            examples = sample(split.valid, part.users, self.recipe.seed)
            exclude_seen = self.data.exclude_seen(self.recipe.serving.exclude_seen)
            beam = self.beam(self.recipe.serving.beam_width)  # what the service will blend
            unfitted = BlendedRecommender(beam, Blend(neighbours, self.embedding_NE, start), self._rows)
            weights = fit_blend(unfitted, examples, exclude_seen, self.run.reporter)
            if weights is not None:
                artefacts.write_blend(folder, neighbours, weights)

        part = self.recipe.serving
        more = {"beam_width": part.beam_width, "exclude_seen": part.exclude_seen}
        return self.run.stage("blend", self._inputs("blend", self.finetuned, more), make)

    @cached_property
    def evaluated(self) -> Stage:
        """Stage evaluate."""

        def make(folder: Path) -> None:
            evaluation = self.evaluation()
            ranks = evaluation.ranks(self.recommender(), self.run.reporter)
            artefacts.write_ranks(folder, ranks)
            levels = {"teacher_forced": self._teacher_forced(evaluation)}
            costs = {"training": self._costs()}
            report = evaluation.report(ranks)
            for line in warning_lines(report["below_baselines"]):
                self.run.reporter.say(line)
            write_json(folder / "metrics.json", report | levels | costs | self._sids())

        return self.run.stage("evaluate", self._inputs("evaluate", self.blended), make)

    @cached_property
    def exported(self) -> Stage:
        """Stage export: the checkpoint and the histories beside it."""

        def make(folder: Path) -> None:
            manifest = self._exported().write(self.run.path / CHECKPOINT)
            write_histories(self.data.dataset, self.run.path)
            told = {"model_version": manifest.model_version}
            told["max_abs_logit_difference"] = manifest.metrics["export_max_abs_logit_difference"]
            write_json(folder / "export.json", told)
            self.run.reporter.say(f"export: {self.run.path / CHECKPOINT}, {json.dumps(told)}")

        if not (self.run.path / CHECKPOINT / "manifest.json").exists():
            self.run.forget("export")
        return self.run.stage("export", self._inputs("serving", self.evaluated), make)

    @property
    def encoder_folder(self) -> Path:
        """The text encoder."""
        return resolve_encoder(self.recipe.embedding.encoder, cache_dir=self._cache_dir)

    @cached_property
    def embedding_NE(self) -> NDArray[np.float32]:
        """Item embeddings."""
        return artefacts.read_embedding(self.embedded.folder)

    @cached_property
    def codes_NL(self) -> NDArray[np.int64]:
        """The items' SIDs."""
        return artefacts.read_codes(self.identified.folder)

    def load_backbone(self, layers: int | None) -> tuple[Backbone, SidSpace]:
        """The backbone with SID tokens in its tokenizer, and their space."""
        part = self.recipe.backbone
        backbone = load_backbone(part.spec, cache_dir=self._cache_dir, num_layers=layers, dtype=torch_dtype(part.dtype))
        space, prompt = add_sid_tokens(backbone, self.codes_NL.shape[1], self.recipe.sids.all_codes), self.recipe.prompt
        prefix = tuple(backbone.tokenize([prompt.prefix])[0])
        check_positions(backbone, PromptTemplate(space, prefix, prompt.max_items, prompt.title_tokens))
        return backbone, space

    @cached_property
    def trained(self) -> tuple[ModelParts, GroundedLM]:
        """The fine-tuned model and what it was put together from."""
        folder, parts = self.finetuned.folder, self._parts()
        return parts, load_weights(parts.assemble(), folder)

    @cached_property
    def blend(self) -> Blend | None:
        """What answers are blended with, if the recipe wants it and it could be fitted."""
        found = artefacts.read_blend(self.blended.folder)
        return None if found is None else Blend(found[0], self.embedding_NE, found[1])

    def recommender(self) -> Recommender:
        """The fine-tuned model as it is evaluated and served."""
        beam = self.beam(self.recipe.evaluate.beam_width)
        return beam if self.blend is None else BlendedRecommender(beam, self.blend, self._rows)

    @property
    def _rows(self) -> NDArray[np.int64]:
        return np.arange(len(self.codes_NL))

    def beam(self, beam_width: int) -> BeamRecommender:
        """The fine-tuned model alone."""
        return BeamRecommender(
            self.trained[1],
            self.codes_NL,
            self.data.popularity_N,
            max_items=self.recipe.prompt.max_items,
            beam_width=beam_width,
            title_NT=self._item_tokens(self.trained[0].backbone).title_NT,
        )

    def evaluation(self) -> Evaluation:
        """What is measured."""
        split, part = self.data.split, self.recipe.evaluate
        studied = Studied(split, self.data.popularity_N, self.embedding_NE, self.codes_NL, self.recipe)
        baselines = baselines_of(part.baselines, studied)
        examples = sample(split.test, part.max_users, self.recipe.seed)
        return Evaluation(examples, baselines, part, self.recipe.seed, self.data.popularity_N)

    def show(self, metrics: Mapping[str, Any]) -> None:
        """Print the tables."""
        for table in tables(metrics, self.recipe.evaluate.ks):
            self.run.reporter.show(table)

    def _inputs(self, part: str, upstream: Stage, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        recipe = getattr(self.recipe, part).model_dump(mode="json")
        return {
            "recipe": recipe,
            "seed": self.recipe.seed,
            "upstream_fingerprint": upstream.fingerprint,
            **(more or {}),
        }

    def _parts(self) -> ModelParts:
        backbone, space = self.load_backbone(self.recipe.backbone.layers)
        prefix = tuple(backbone.tokenize([self.recipe.prompt.prefix])[0])
        rows, head = artefacts.read_rows(self.grounded.folder)
        memory = None
        if self.recipe.prefix_memory.enabled:
            memory = artefacts.read_memory(self.remembered.folder, self.recipe, self.codes_NL, space, backbone.width)
        return ModelParts(backbone, space, prefix, rows, head, memory)

    def _finetune(self) -> tuple[ModelParts, GroundedLM, dict[str, Any]]:
        parts = self._parts()
        model = parts.assemble()
        if self.recipe.backbone.gradient_checkpointing:
            model.lm.gradient_checkpointing_enable({"use_reentrant": False})
        alignment = alignment_of(model, self.recipe, parts.backbone, self.codes_NL, texts(self.data.dataset.items))
        items = self._item_tokens(parts.backbone)
        result = train_next_item(model, self.recipe, self.data, items, self.run, alignment, self._processes)
        return parts, model, result

    def _item_tokens(self, backbone: Backbone) -> ItemTokens:
        tokenize = partial(text_token_ids, backbone.tokenizer)
        titles = TitleTokens(tokenize, self.recipe.prompt.title_tokens)
        return ItemTokens(self.codes_NL, titles.rows([item.title for item in self.data.dataset.items]))

    def _grounding_context(self, backbone: Backbone, space: SidSpace) -> GroundingContext:
        codebooks_LKE = artefacts.read_quantizer(self.identified.folder).codebooks_LKD.numpy()
        items = texts(self.data.dataset.items)
        return GroundingContext(backbone, space, self.codes_NL, items, self.recipe.seed, codebooks_LKE)

    @property
    def training_stages(self) -> tuple[Stage, ...]:
        """The finished stages whose time is training's."""
        memory = (self.remembered,) if self.recipe.prefix_memory.enabled else ()
        return (self.embedded, self.identified, self.grounded, *memory, self.finetuned, self.blended)

    def grounding_cost(self) -> dict[str, Any]:
        """What grounding took and reached; its share of training is measured where this recipe is fine-tuned."""
        told = self.grounded.read_json("grounding.json")
        losses = told.pop("losses")
        ends = {"first_loss": losses[0], "last_loss": losses[-1]} if losses else {}
        if self.run.find("finetune") is not None and self.run.stands("finetune", self._finetune_inputs()):
            return told | ends | measured_share(self.training_stages, told, self._samples())
        return told | ends | estimated_share(self.recipe, self.data, told, self._cache_dir)

    def _costs(self) -> dict[str, Any]:
        stages = self.training_stages
        return {
            "wall_seconds": {stage.folder.name: stage.wall_seconds for stage in stages},
            "cpu_seconds": {stage.folder.name: stage.cpu_seconds for stage in stages},
            **measured_share(stages, self.grounded.read_json("grounding.json"), self._samples()),
        }

    def _samples(self) -> int:
        tuned = self.finetuned.read_json("finetune.json")
        return finetune_samples(self.recipe, self.data, len(tuned["validation_ndcg"])) + int(tuned["alignment_pairs"])

    def _teacher_forced(self, evaluation: Evaluation) -> list[float]:
        parts, model = self.trained
        max_items = self.recipe.prompt.max_items
        return teacher_forced_accuracy(
            model, self._item_tokens(parts.backbone), evaluation.examples, max_items=max_items
        )

    def _sids(self) -> dict[str, Any]:
        return {"collision_rate": collision_rate(self.codes_NL), "code_entropy_bits": code_entropy(self.codes_NL)}

    def _exported(self) -> Exported:
        parts, model = self.trained
        return Exported(
            recipe=self.recipe,
            data=self.data,
            backbone=parts.backbone,
            model=model,
            codes_NL=self.codes_NL,
            embedding_NE=self.embedding_NE,
            quantizer=artefacts.read_quantizer(self.identified.folder),
            encoder_folder=self.encoder_folder,
            blend=artefacts.read_blend(self.blended.folder),
            metrics=self.evaluated.read_json("metrics.json"),
        )
