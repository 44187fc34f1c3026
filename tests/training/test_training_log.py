"""The log reads as a table, its steps only rise, and a stopped run's repeated steps stand in it once."""

from pathlib import Path

from training.training_log import COLUMNS, TrainingLog, read_log


def step(number: int, loss: float = 1.0) -> dict[str, float | int]:
    return {"step": number, "epoch": 0, "loss": loss, "gradient_norm": 0.5}


def epoch(number: int) -> dict[str, float | int]:
    return {"step": number, "epoch": 1, "mean_loss": 1.5, "valid_ndcg@10": 0.25}


def test_rows_are_cells_under_fixed_headings(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path / "log.csv")
    log.append(step(10))
    log.append(epoch(10))
    assert (tmp_path / "log.csv").read_text().splitlines() == [
        ",".join(COLUMNS),
        "10,0,1.0,0.5,,,,,",
        "10,1,,,,,,1.5,0.25",
    ]
    last = {"step": "10", "epoch": "1", "mean_loss": "1.5", "valid_ndcg@10": "0.25"}
    assert read_log(tmp_path / "log.csv")[1] == last


def test_steps_repeated_after_a_stop_take_the_place_of_the_old_ones(tmp_path: Path) -> None:
    before = TrainingLog(tmp_path / "log.csv")
    for row in (step(10), step(20), epoch(20), step(30, 3.0), step(40, 4.0)):
        before.append(row)
    after = TrainingLog(tmp_path / "log.csv")  # its state was saved at step 20, before the epoch's end
    for row in (epoch(20), step(30, 5.0)):
        after.append(row)
    rows = [(row["step"], row.get("loss")) for row in read_log(tmp_path / "log.csv")]
    assert rows == [("10", "1.0"), ("20", "1.0"), ("20", None), ("30", "5.0")]


def test_a_line_cut_short_by_a_kill_is_left_out_and_mended(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    TrainingLog(path).append(step(10))
    path.write_text(path.read_text() + "20,0,1.")
    assert [row["step"] for row in read_log(path)] == ["10"]
    TrainingLog(path).append(step(20))
    assert [row["step"] for row in read_log(path)] == ["10", "20"]


def test_no_log_has_no_rows(tmp_path: Path) -> None:
    assert read_log(tmp_path / "log.csv") == []
