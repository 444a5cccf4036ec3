"""What DataFrames refuse, and how they hang together; what they send is what the contract tests say."""

import pytest
from connect_recorder import session

from solstice.connect import Column, Observation, Window
from solstice.connect import functions as F
from solstice.connect import types as T
from solstice.connect._link import Link
from solstice.connect._plan import Checkpoint, Filter, RemoveCachedRemoteRelation, WithRelations
from solstice.connect._protocol import load_protocol
from solstice.errors import ArgumentTypeError, InvalidPlanError, SessionClosedError


@pytest.fixture
def spark():
    return session()


@pytest.fixture
def df(spark):
    return spark.range(10)


@pytest.mark.parametrize(
    "use",
    [
        lambda d: d.limit(-1),
        lambda d: d.limit(True),
        lambda d: d.limit(2**31),
        lambda d: d.sort(),
        lambda d: d.sort(0),
        lambda d: d.sort("a", ascending=[True, False]),
        lambda d: d.withColumns({}),
        lambda d: d.join(d, how="sideways"),
        lambda d: d.lateralJoin(d, how="right"),
        lambda d: d.nearestByJoin(d, F.col("a"), 0, "exact", "distance"),
        lambda d: d.nearestByJoin(d, F.col("a"), 1, "guess", "distance"),
        lambda d: d.observe("o"),
        lambda d: d.groupBy("a").agg(),
        lambda d: d.groupBy("a").agg("b"),
        lambda d: d.rollup("a").pivot("b"),
        lambda d: d.groupBy(0),
        lambda d: d.coalesce(0),
        lambda d: d.repartition(0),
        lambda d: d.repartitionByRange(3),
        lambda d: d.sample(),
        lambda d: d.randomSplit([-1.0, 2.0]),
        lambda d: d.fillna({}),
        lambda d: d.dropna("some"),
        lambda d: d.replace(1),
        lambda d: d.replace([1, 2], [3]),
        lambda d: d.replace({1: "x"}),
        lambda d: d.corr("a", "b", "spearman"),
        lambda d: d.approxQuantile("a", [2.0], 0.1),
        lambda d: d.explain(True, mode="cost"),
        lambda d: d.explain("everything"),
        lambda d: d.asTable().orderBy("a"),
        lambda d: d.asTable().partitionBy("a").withSinglePartition(),
        lambda d: d.union(session().range(1)),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_remedy(df, use):
    with pytest.raises(InvalidPlanError) as caught:
        use(df)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "use",
    [
        lambda d: d.select(1),
        lambda d: d.filter(True),
        lambda d: d.withColumn("x", 1),
        lambda d: d.join(d, [F.col("a"), "b"]),
        lambda d: d.join("t"),
        lambda d: d.dropDuplicates("a"),
        lambda d: d[1.5],
        lambda d: d.transform(lambda _: None),
        lambda d: d.sparkSession.createDataFrame(d),
        lambda d: d.sparkSession.sql("select 1", args="x"),
        lambda d: d.sparkSession.read.schema(3),
    ],
)
def test_the_wrong_kind_of_argument_is_a_type_error(df, use):
    with pytest.raises(TypeError):
        use(df)


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda d: d.describe(5), r"describe\(\) takes str \| Sequence\[str\] as 'cols', not 5"),
        (lambda d: d.dropDuplicates(5), r"takes Sequence\[str\] \| None as 'subset', not 5"),
        (lambda d: d.fillna(0, subset=5), "'subset', not 5"),
        (lambda d: d.join(d, 5), r"join\(\) takes str \| Column \| .* as 'on', not 5"),
        (lambda d: d.join(d, "id", 5), "as 'how', not 5"),
        (lambda d: d.withColumns(["a"]), r"as 'cols_map', not \['a'\]"),
        (lambda d: d.observe("o", "count"), "takes Column as 'exprs', not 'count'"),
        (lambda d: d.sample("much"), "as 'with_replacement', not 'much'"),
        (lambda d: d.randomSplit([1, "x"]), r"takes Sequence\[float\] as 'weights', not \[1, 'x'\]"),
        (lambda d: d.sampleBy("id", [0.5]), r"'fractions', not \[0.5\]"),
        (lambda d: d.unpivot(5, None, "k", "v"), "'ids', not 5"),
        (lambda d: d.show(truncate="wide"), "takes bool | int as 'truncate', not 'wide'"),
        (lambda d: d.persist("DISK_ONLY"), "takes StorageLevel as 'storage_level', not 'DISK_ONLY'"),
        (lambda d: d.createTempView(5), "'name' of CreateView is text, not 5"),
        (lambda d: d.alias(5).count(), "'alias' of SubqueryAlias is text, not 5"),
        (lambda d: d.withColumnRenamed("a", 5).count(), "'new_col_name' of Rename is text, not 5"),
        (lambda d: d.to("a INT").count(), "'schema' of ToSchema is a DataType, not 'a INT'"),
        (lambda d: d.sparkSession.sql(5), r"sql\(\) takes str as 'sql_query', not 5"),
        (lambda d: d.sparkSession.table(5).count(), "'unparsed_identifier' of NamedTable is text, not 5"),
        (lambda d: d.sparkSession.range("x"), r"range\(\) takes int as 'start', not 'x'"),
        (lambda d: d.sparkSession.read.parquet(5).count(), "'paths' of DataSource is text, not 5"),
        (lambda d: Window.rowsBetween("a", 0), r"rows_between\(\) takes int as 'start', not 'a'"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named_with_what_it_should_be(df, use, reason):
    with pytest.raises(ArgumentTypeError, match=reason):
        use(df)


def test_an_error_that_is_not_of_the_arguments_stays_as_it_is(df):
    with pytest.raises(TypeError, match="unsupported operand"):
        df.transform(lambda d: d.limit(1) + None)
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'num'"):
        df.limit()


def test_an_attribute_is_a_column_unless_it_is_private(df):
    assert isinstance(df.anything, Column)
    assert isinstance(df._1, Column)
    for name in ("_private", "__array__", "_repr_mimebundle_", "_ipython_canary_method_should_not_exist_"):
        assert not hasattr(df, name)


@pytest.mark.parametrize("name", ["rdd", "write", "mapInPandas"])
def test_what_pyspark_has_and_this_client_not_is_no_column(df, name):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; a column of that name is df\['{name}'\]"):
        getattr(df, name)
    assert isinstance(df[name], Column)


def test_columns_refer_to_the_relation_together_with_its_subqueries(spark, df):
    filtered = df.filter(spark.range(1).exists())
    assert isinstance(filtered._relation, WithRelations)
    assert filtered.id._expression.plan_id == filtered._relation.plan_id != filtered._relation.root.plan_id


def test_a_transformed_dataframe_knows_the_schema_that_did_not_change(df):
    df._schema = T.StructType().add("id", "long")
    assert df.filter("id > 1").limit(3).sort("id")._schema is df._schema
    assert df.select("id")._schema is None


def test_a_schema_that_is_added_to_is_a_copy(df):
    df._schema = T.StructType().add("id", "long")
    df.schema.add("x", "long")
    assert df.columns == ["id"]


def test_an_observation_travels_with_its_dataframe(spark, df):
    one, other = Observation("one"), Observation()
    joined = df.observe(one, F.count("*")).filter("id > 1").join(spark.range(1).observe(other, F.count("*")), "id")
    assert set(joined._observations.values()) == {one, other}
    with pytest.raises(InvalidPlanError, match="once"):
        df.observe(one, F.count("*"))
    assert one.get == {}
    with pytest.raises(InvalidPlanError, match="observes nothing"):
        _ = Observation("x").get
    with pytest.raises(InvalidPlanError):
        Observation("")


def test_a_view_of_a_query_is_made_once_for_each_dataframe(spark, df):
    relation = spark.sql("select * from {a} join {a} join {b}", a=df, b=df.limit(1))._relation
    assert len(relation.references) == 2
    with pytest.raises(InvalidPlanError, match="plain column"):
        spark.sql("select {c} from t", c=F.col("a") + 1)


def test_the_plan_of_a_filter_is_a_node_that_cannot_be_changed(df):
    relation = df.filter("id > 1")._relation
    assert isinstance(relation, Filter)
    with pytest.raises(AttributeError):
        relation.condition = None


def test_a_schema_that_is_set_twice_is_the_second(spark):
    relation = spark.read.schema("a INT").schema(T.StructType().add("b", "long")).json("p")._relation
    assert '"name":"b"' in relation.data_source.schema


def test_there_is_no_active_session_until_a_builder_made_one(spark):
    with pytest.raises(SessionClosedError, match="builder"):
        spark.active()
    assert spark.getActiveSession() is None


def test_the_server_may_forget_a_checkpoint_that_nothing_here_refers_to(spark, df, monkeypatch):
    names = iter(["r1", "r2", "r3"])
    sent = []

    async def command(self, command, observations=None):
        sent.append(command)
        relation = load_protocol().CachedRemoteRelation(relation_id=next(names, ""))
        return {"checkpoint_command_result": load_protocol().CheckpointCommandResult(relation=relation)}

    monkeypatch.setattr(Link, "command", command)
    first, second = df.checkpoint(), df.checkpoint()
    kept = second.filter("id > 1")
    del first, second
    assert [type(command) for command in sent] == [Checkpoint, Checkpoint]
    df.checkpoint()
    forgotten = [command.relation.relation_id for command in sent if isinstance(command, RemoveCachedRemoteRelation)]
    assert forgotten == ["r1"]
    assert kept._relation.input.relation_id == "r2"


def test_two_threads_may_tell_the_server_what_is_forgotten(spark, df, monkeypatch):
    class TakenMeanwhile(list):
        def __bool__(self):
            return True  # as another thread's pop() comes between the question and ours

    async def command(self, command, observations=None):
        relation = load_protocol().CachedRemoteRelation(relation_id="r")
        return {"checkpoint_command_result": load_protocol().CheckpointCommandResult(relation=relation)}

    monkeypatch.setattr(Link, "command", command)
    monkeypatch.setattr(spark._link, "_forgotten", TakenMeanwhile())
    assert df.checkpoint()._relation.relation_id == "r"


def test_a_sample_keeps_its_seed_also_by_name(df):
    for sample in (df.sample(0.5, 3), df.sample(0.5, seed=3), df.sample(False, 0.5, 3)):
        assert (sample._relation.upper_bound, sample._relation.seed) == (0.5, 3)
