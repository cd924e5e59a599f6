"""The SQL that is sent is what would be written today, from queries that keep the rules."""

from pathlib import Path
from shutil import copytree

import pytest

from semel.stores.sql.dialect import DIALECTS, query_files
from tools.queries import FOLDER, SYNTAXES, BadQuery, main, sent, sent_text, without_returning

EACH_DIALECT = pytest.mark.parametrize("name", DIALECTS)


def test_the_files_are_those_that_the_tool_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    assert not capsys.readouterr().out


def test_there_is_a_syntax_for_each_dialect() -> None:
    assert tuple(SYNTAXES) == DIALECTS


@EACH_DIALECT
def test_semel_reads_the_files_that_the_tool_writes(name: str) -> None:
    files = {file.removesuffix(".sql"): text for file, text in sent(name).items()}
    assert files == query_files(name)


def test_files_that_differ_are_noticed_and_put_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(FOLDER / "queries", tmp_path / "queries")
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    capsys.readouterr()
    folder = tmp_path / "sent" / "mysql"
    (folder / "read.sql").write_text("SELECT 1")
    (folder / "clock.sql").unlink()
    (folder / "old.sql").write_text("SELECT 1")
    assert main(["--check"], tmp_path) == 1
    said = "run `python -m tools.queries`"
    names = ("clock", "old", "read")
    assert capsys.readouterr().out.splitlines() == [f"sent/mysql/{n}.sql: {said}" for n in names]
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    assert not (folder / "old.sql").exists()


@pytest.mark.parametrize(
    "source",
    ["SELECT 1", "-- takes: a\nSELECT :b", "-- takes: a b\nSELECT :a", "-- takes:\nSELECT :a"],
)
def test_a_placeholder_that_the_header_does_not_name_is_an_error(source: str) -> None:
    with pytest.raises(BadQuery):
        sent_text("query.sql", source, SYNTAXES["sqlite"])


def test_placeholders_and_clock_are_written_as_the_database_wants_them() -> None:
    source = "-- takes: b a\n-- why: 100 % :safe\nSELECT :a, x::bigint, 5 % 2, {now}, :b"
    made = {name: sent_text("query.sql", source, SYNTAXES[name]) for name in DIALECTS}
    assert made == {
        "sqlite": "-- takes: b a\n-- why: 100 % :safe\nSELECT :a, x::bigint, 5 % 2, :now, :b",
        "postgresql": "-- takes: $1 b $2 a\n-- why: 100 % :safe\nSELECT $2, x::bigint, 5 % 2, "
        "(extract(epoch from clock_timestamp()) * 1000000)::bigint, $1",
        "mysql": "-- takes: b a\n-- why: 100 % :safe\nSELECT :a, x::bigint, 5 % 2, "
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), :b",
    }


@EACH_DIALECT
def test_a_comparison_with_names_takes_them_as_a_parameter(name: str) -> None:
    made = sent_text("query.sql", "-- takes: names\nSELECT x {among}", SYNTAXES[name])
    assert ("$1" if name == "postgresql" else ":names") in made.partition("\n")[2]


def test_a_write_is_told_after_it_and_what_goes_before() -> None:
    assert without_returning("UPDATE t\nSET a = 1\nWHERE k = :k AND b = 2\nRETURNING a") == (
        "UPDATE t\nSET a = 1\nWHERE k = :k AND b = 2",
        "SELECT a\nFROM t\nWHERE k = :k AND ROW_COUNT() > 0",
    )
    assert without_returning("DELETE FROM t\nWHERE k = :k AND b = 2\nRETURNING 1") == (
        "SELECT 1\nFROM t\nWHERE k = :k AND b = 2\nFOR UPDATE",
        "DELETE FROM t\nWHERE k = :k AND b = 2",
    )


def test_an_act_and_its_entry_are_one_statement_or_the_entry_comes_first() -> None:
    source = (
        "-- audits: evict expired\n-- takes: k\n"
        "UPDATE semel_record\nSET state = 'expired'\nWHERE identity = :k\nRETURNING 1"
    )
    made = sent_text("query.sql", source, SYNTAXES["postgresql"])
    assert "-- takes: $1 k $2 actor $3 why\n" in made
    assert "FOR UPDATE\n),\nnoted AS (\n    INSERT INTO semel_audit\n" in made
    assert made.endswith("WHERE identity = $1\n  AND EXISTS (SELECT FROM seen)\nRETURNING 1")
    entry, _, rest = sent_text("query.sql", source, SYNTAXES["sqlite"]).partition(";\n\n")
    assert entry.endswith("FROM semel_record\nWHERE identity = :k")
    assert source.endswith(rest)


def test_a_line_that_is_too_long_is_broken_where_a_reader_would() -> None:
    long = "x" * 60
    source = f"-- takes:\nUPDATE t\nSET a = '{long}', b = {{now}} + {{retention}}\nWHERE c = 1"
    made = sent_text("query.sql", source, SYNTAXES["postgresql"]).splitlines()[2:]
    assert made == [
        f"SET a = '{long}',",
        "    b = (extract(epoch from clock_timestamp()) * 1000000)::bigint",
        "    + (SELECT retention FROM semel_terms WHERE id = semel_record.terms)",
        "WHERE c = 1",
    ]


def test_columns_stand_below_one_another() -> None:
    source = "-- takes:\nSELECT one.*\nFROM (\n    SELECT {glimpse}, {now}\n) AS one"
    made = sent_text("query.sql", source, SYNTAXES["sqlite"]).splitlines()
    columns = [line for line in made if "record." in line]
    assert columns[0].startswith("    SELECT record.identity, record.state, ")
    assert all(line.startswith("           ") for line in columns[1:])
    assert made[-2].endswith(" :now")
