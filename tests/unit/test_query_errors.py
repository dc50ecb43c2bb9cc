"""The one line that says why a query ended."""

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JNetworkError

from sluice.sinks.errors import S3_RIGHTS, storage_reason
from sluice.state.errors import StateError
from sluice.streaming.errors import CheckpointError, CheckpointStorageError, JobError
from sluice.streaming.queries.reasons import Cause, Place, reason_of
from tests.web import answering

REPORT = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred. Reason: Traceback (most recent call last):
  File "enforce.py", line 76, in write_batch
py4j.protocol.Py4JJavaError: An error occurred while calling o793.save.
: org.apache.spark.SparkException: {outer}
\tat org.apache.spark.scheduler.DAGScheduler
Caused by: java.io.EOFException: Stream ended prematurely
\t... 19 more
 SQLSTATE: 39000
"""


def text_of(error: BaseException | None) -> str:
    return reason_of(error, "enforce").text


@pytest.mark.parametrize(
    ("outer", "reason"),
    [
        ("Job aborted", "java.io.EOFException: Stream ended prematurely"),
        (
            "[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred during loading state.",
            "stored state can't be read (java.io.EOFException: Stream ended prematurely);"
            " restore the checkpoint from a backup",
        ),
        (
            "Python worker exited unexpectedly (crashed).",
            "a Python worker died: killed, or out of memory (java.io.EOFException: Stream ended prematurely)",
        ),
    ],
)
def test_the_text_has_the_innermost_cause_and_what_to_do(outer: str, reason: str) -> None:
    assert text_of(RuntimeError(REPORT.format(outer=outer))) == reason


def test_an_error_of_java_without_a_cause_is_said_in_javas_words_not_in_py4js() -> None:
    call = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"

    text = text_of(
        RuntimeError(f"{call}: java.lang.OutOfMemoryError: unable to create native thread: x\n\tat a.B(C:1)")
    )
    other = text_of(RuntimeError(f"{call}: java.lang.IllegalStateException: closed\n\tat a.B(C:1)"))

    assert text.startswith(
        "the system gives Java no further thread (java.lang.OutOfMemoryError: unable to create native thread: x); raise"
    )
    assert other == "java.lang.IllegalStateException: closed"


@pytest.mark.parametrize(
    ("cause", "package"),
    [
        (
            "org.apache.spark.SparkException: EOFException occurred while reading the port number from"
            " sluice_native.batched_daemon's stdout and terminated with code: 1.",
            "sluice-kafka-native",
        ),
        ("ModuleNotFoundError: No module named 'sluice_elastic'", "sluice-kafka-elastic"),
    ],
)
def test_a_package_that_a_worker_lacks_is_named_with_the_cure(cause: str, package: str) -> None:
    text = text_of(RuntimeError(f"Job aborted due to stage failure: Lost task 0.3\nCaused by: {cause}\n\t... 19 more"))

    assert text.startswith(f"the Python of a worker lacks the package {package}, or can't load it ({cause}); install ")
    assert "\n" not in text


def test_a_store_that_refuses_is_said_with_the_rights_that_the_job_needs() -> None:
    report = (
        "An error occurred while calling o622.start.\n"
        ": java.nio.file.AccessDeniedException: s3a://bucket/enforce/metadata: getFileStatus\n"
        "Caused by: software.amazon.services.s3.model.S3Exception: FORBIDDEN (Service: S3, Status Code: 403, ID: 7)"
    )

    text = text_of(RuntimeError(report))

    assert "S3Exception: FORBIDDEN (Service: S3, Status Code: 403" in text
    assert "may not all of s3:GetObject, PutObject, DeleteObject and ListBucket there" in text
    of_kafka = "x\nCaused by: org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized: [requests]"
    assert "lacks a right that it needs (org.apache" in text_of(RuntimeError(of_kafka))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("403 Forbidden:AccessDenied:Denied", f" answers 403 Forbidden: Denied: {S3_RIGHTS}"),
        ("403 Forbidden:X:Your current time is too large.", "time is too large: set this machine's clock by NTP"),
        ("400 Bad Request:X:Your token has expired.", ": renew AWS_SESSION_TOKEN or the file of credentials"),
        ("404 Not Found:X:The bucket does not exist", ": make it, or correct the name in the settings"),
        ("503 Service Unavailable:SlowDown:Reduce your rate.", " answers 503 Service Unavailable: Reduce your rate"),
        ("301 Moved:X:Elsewhere.", ": Received redirect without LOCATION, this normally indicates an incorrectly"),
        ("http://127.0.0.1:1", ": Connection refused (os error 111): see that it runs, and that this machine finds"),
        ("http://no.such.host.invalid", ": see that it runs, and that this machine finds and reaches it"),
    ],
)
@pytest.mark.parametrize(
    "report", ["{}", "Reason: Traceback (most recent call last):\n  File\nOSError: {}\n\nSQLSTATE: 39000"]
)
def test_an_error_of_a_table_in_s3_is_one_plain_line_wherever_it_is_raised(
    answer: str, words: str, report: str
) -> None:
    """delta-rs writes a tree of causes, with XML in it."""
    status, code, message, *_ = [*answer.split(":", 2), "", ""]
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with answering((head + body).encode()) as port:
        place = answer if status == "http" else f"http://127.0.0.1:{port}"
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "eu-west-1"}
        once = {"AWS_ENDPOINT_URL": place, "AWS_ALLOW_HTTP": "true", "max_retries": "1", "retry_timeout": "1s"}
        with pytest.raises(OSError, match="Error performing GET") as raised:
            DeltaTable("s3://bucket/decisions", storage_options=keys | once)

    said = text_of(RuntimeError(report.format(raised.value)))
    assert said == storage_reason(raised.value)
    assert said.startswith(f"S3 at {place}")
    assert words in said


def test_a_record_whose_time_spark_cannot_read_is_said_with_the_way_out() -> None:
    """In a topic that was made without bounds; no restart helps."""
    report = (
        "KafkaIllegalStateException: Record at topic quota-requests partition 1 offset 42 has timestamp value"
        " -9000000000000000000 that overflows when converting to Spark's microsecond-precision TimestampType.\n"
        "Ensure the Kafka producer sets the ProducerRecord timestamp in milliseconds.\n"
        "Caused by: java.lang.ArithmeticException: long overflow"
    )

    text = text_of(RuntimeError(report))

    assert "can't read the record's time (java.lang.ArithmeticException: long overflow)" in text
    assert "kafka-delete-records.sh" in text
    assert "message.timestamp.before.max.ms" in text
    assert "enforce.fail_on_data_loss: false" in text


@pytest.mark.parametrize(
    ("error", "text", "cause"),
    [
        (RuntimeError("query\tstopped\nfor no reason"), "query stopped", Cause.OTHER),
        (RuntimeError(), "RuntimeError", Cause.OTHER),
        (None, "no error was given", Cause.OTHER),
        (Py4JNetworkError("Answer from Java side is empty"), None, Cause.PROCESS_BROKEN),
        (
            Py4JNetworkError("java.io.IOException: No space left on device"),
            "there is no room to write (java.io.IOException: No space left on device); make room on the disk",
            Cause.PROCESS_BROKEN,
        ),
        (
            ConnectionRefusedError(111, "Connection refused"),
            "Java, in which Spark runs, is gone ([Errno 111] Connection refused): killed, or out of memory;"
            " start the job again",
            Cause.PROCESS_BROKEN,
        ),
        # Only Spark's report decides, never words: this is the text of lost input, in an error that isn't.
        (JobError("Kafka no longer has the next records to read"), None, Cause.OTHER),
    ],
)
def test_a_report_without_an_error_is_its_first_line(
    error: BaseException | None, text: str | None, cause: Cause
) -> None:
    reason = reason_of(error, "enforce")

    assert text in (None, reason.text)
    assert reason.cause is cause


def test_workers_of_another_release_end_the_job() -> None:
    report = (
        "pyspark.errors.PythonException: Traceback\n  File ...\nsluice.streaming.errors.ReleaseError: restart the job"
    )
    reason = reason_of(RuntimeError(report), "enforce")

    assert reason.cause is Cause.OTHER_RELEASE
    assert reason.cause.is_lasting
    assert reason.text == "sluice.streaming.errors.ReleaseError: restart the job"


def test_a_long_reason_is_cut() -> None:
    assert len(text_of(RuntimeError("java.io.IOException: " + "x" * 10_000))) == 400


@pytest.mark.parametrize("query", ["enforce", "audit"])
def test_lost_input_names_the_setting_of_the_query(query: str) -> None:
    reason = reason_of(RuntimeError("[KAFKA_DATA_LOSS.X] Some data may have been lost"), query)

    assert reason.cause is Cause.LOST_INPUT
    assert f"set {query}.fail_on_data_loss: false" in reason.text


def test_only_damage_that_no_restart_cures_is_lasting() -> None:
    def is_lasting(error: Exception) -> bool:
        return reason_of(error, "enforce").cause.is_lasting

    assert is_lasting(CheckpointError("sluice.json is damaged"))
    assert is_lasting(RuntimeError("[KAFKA_DATA_LOSS.X] Some data may have been lost"))
    assert is_lasting(RuntimeError("Traceback\nstate.errors.StateError: stored state is cut short"))
    assert not is_lasting(RuntimeError("java.io.IOException: disk"))
    for away in (
        CheckpointStorageError,
        lambda text: RuntimeError(f"x\nstreaming.errors.CheckpointStorageError: {text}"),
    ):
        assert not is_lasting(away("can't read sluice.json in s3a://bucket/enforce: refused"))


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (
            "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost because they are not available"
            " in Kafka any more. Could not read records in offset [700, 800) for topic partition quota-requests-3\n"
            "with consumer group spark-kafka-source-1.",
            Place("quota-requests", 3, 700),
        ),
        (
            "[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] Some data may have been lost. Partition my.requests_1-0 offset"
            " was changed from 1000 to 5.",
            Place("my.requests_1", 0, 1000),
        ),
        (
            "[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost. Starting offset for requests-12 was 500"
            " but consumer reset to 700.",
            Place("requests", 12, 500),
        ),
        (
            "[KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO] Added partition requests-4 starts from 9"
            " instead of 0.",
            Place("requests", 4, 0),
        ),
        (
            "[KAFKA_MALFORMED_RECORD_TIMESTAMP] Record at topic quota-requests partition 1 offset 42 has timestamp"
            " value 9223372036854775807 that overflows",
            Place("quota-requests", 1, 42),
        ),
        (
            "[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] The resolved start offset 9 is greater than the resolved"
            " end offset 5 for topic requests partition 2.",
            Place("requests", 2, 9),
        ),
        (
            "org.apache.kafka.common.errors.CorruptRecordException: Record batch for partition requests-2 at offset 17"
            " is invalid, cause: Record is corrupt",
            Place("requests", 2, 17),
        ),
        (
            "org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Fetch position FetchPosition{offset=31,"
            " offsetEpoch=Optional[0], currentLeader=LeaderAndEpoch{}} is out of range for partition requests-0",
            Place("requests", 0, 31),
        ),
        (
            "org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired before the position for"
            " partition requests-5 could be determined",
            Place("requests", 5),
        ),
        ("sluice.state.errors.StateError: page 12: stored state is cut short", Place(page=12)),
        ("java.io.IOException: disk", None),
    ],
)
def test_the_place_that_an_error_names_is_given_apart(message: str, place: Place | None) -> None:
    """Topic, partition and offset as fields, for those who have to look at that record."""
    assert reason_of(RuntimeError(REPORT.format(outer=message)), "enforce").place == place
    assert reason_of(StateError("page 3: stored state is cut short"), "enforce").place == Place(page=3)
