"""Who asks a broker, and how it is reached: passwords and tokens from files and the environment,
certificates."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tallymark.environment import USER
from tallymark.spark.broker_options import options_of
from tallymark.spark.client import (
    BrokerRefused,
    BrokerUnreachable,
    Client,
    Endpoint,
    NotSecure,
    WrongFile,
)
from tallymark.spark.land import land
from tallymark.spark.options import SourceOptions
from tallymark.spark.sink_options import SinkOptions
from tests.support.certificates import Authority
from tests.support.issuer import EVERYTHING, Issuer
from tests.support.long import long
from tests.support.process import BrokerProcess

SECRET = "planted-for-spark-3b7d"


def parsed(**given: str) -> Endpoint:
    return SourceOptions.parse({"queue": "q", **given}).endpoint


def basic(user: str, password: str) -> str:
    return Endpoint(user=user, password=password).authorization()


def test_a_password_comes_from_an_option_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(USER, raising=False)
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    ann = basic("ann", SECRET)
    assert parsed(user="ann", passwordFile=str(file)).authorization() == ann
    assert parsed(url="http://ann@h", passwordFile=str(file)).authorization() == ann
    assert parsed().authorization() == basic("guest", "guest")
    monkeypatch.setenv(USER, f"ann:{SECRET}")
    assert parsed().authorization() == ann
    assert parsed(url="http://h").authorization() == ann
    assert parsed(url="http://bob:b@h").authorization() == basic("bob", "b"), "the url says more"
    assert parsed(user="bob", password="b").authorization() == basic("bob", "b")
    sink = SinkOptions.parse({"queue": "q", "user": "ann", "passwordFile": str(file)})
    assert sink.endpoint.authorization() == ann


def test_a_token_is_read_at_each_call(tmp_path: Path) -> None:
    assert parsed(token=SECRET).authorization() == f"Bearer {SECRET}"
    file = tmp_path / "token"
    file.write_text("first\n")
    endpoint = parsed(tokenFile=str(file))
    assert endpoint.authorization() == "Bearer first"
    file.write_text("second")
    assert pickle.loads(pickle.dumps(endpoint)).authorization() == "Bearer second"
    file.unlink()
    with pytest.raises(WrongFile, match=r"token_file .*No such file"):
        endpoint.authorization()


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"password": SECRET, "passwordFile": "f"}, '"password" and "passwordFile" exclude'),
        ({"token": SECRET, "password": SECRET}, '"token" and "password" exclude each other'),
        ({"token": SECRET, "user": "ann"}, '"token" and "user" exclude each other'),
        ({"passwordFile": "/nowhere/file"}, "passwordFile='/nowhere/file' cannot be read: No such"),
        ({"verify": SECRET[:2]}, "expected true or false"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, str], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong) as error:
        parsed(**given)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        {"url": "http://ann:x@a:1,[::1]:2", "retryMs": "7"},
        {"url": "https://a", "token": "t", "caFile": "ca", "certFile": "c", "keyFile": "k"},
        {"host": "a", "port": "1", "tokenFile": "t", "verify": "false"},
    ],
)
def test_an_endpoint_is_told_to_spark_as_it_is(given: dict[str, str]) -> None:
    """As the archiver does, which gets the endpoint from a program."""
    endpoint = parsed(**given)
    assert parsed(**options_of(endpoint)) == endpoint


def test_no_text_of_an_endpoint_has_a_secret() -> None:
    for endpoint in (parsed(user="ann", password=SECRET), parsed(token=SECRET)):
        assert SECRET not in f"{endpoint} {endpoint!r}"


@pytest.mark.parametrize("sign", ["#", "/", "?", "//", "[", "@/"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_no_error_of_an_url_has_a_part_of_the_password(scheme: str, sign: str) -> None:
    """Signs that end the host of an URL, in a password that should have been an option."""
    with pytest.raises(ValueError) as error:
        parsed(url=f"{scheme}ann:{SECRET}{sign}{SECRET}@host:1")
    assert SECRET not in str(error.value)


@long  # starts a broker with TLS, and an issuer of tokens
def test_certificates_and_tokens_at_a_broker(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    server, client = ours.sign("localhost"), ours.sign("ann")
    flags = {
        "https_port": "0", "https_verify": "require", "https_ca_file": str(ours.own.cert),
        "https_cert": str(server.cert), "https_key": str(server.key),
    }  # fmt: skip
    with (
        Issuer() as issuer,
        BrokerProcess(tmp_path / "data", **flags, **issuer.flags()) as broker,
    ):
        url = f"https://127.0.0.1:{broker.ready['https'][1]}"
        token = issuer.token(*EVERYTHING, "tag:administrator")
        shown = {"certFile": str(client.cert), "keyFile": str(client.key)}

        def asks(**given: str) -> Any:
            endpoint = parsed(**{"url": url, "retryMs": "0", "token": token, **given})
            return Client(endpoint).call("GET", "/api/tallymark/queues")

        assert asks(caFile=str(ours.own.cert), **shown) == {"queues": []}
        assert asks(verify="false", **shown) == {"queues": []}
        # Not tried again for a minute: it does not pass.
        with pytest.raises(NotSecure, match=r"not accepted: self-signed .* caFile"):
            asks(caFile=str(theirs.own.cert), retryMs="3600000", **shown)
        plain = f"https://127.0.0.1:{broker.ready['http'][1]}"
        with pytest.raises(NotSecure, match="this port has no TLS"):
            asks(url=plain, retryMs="3600000")
        with pytest.raises(BrokerUnreachable, match="requires a client certificate"):
            asks(caFile=str(ours.own.cert))
        other = theirs.sign("ann")
        with pytest.raises(BrokerUnreachable, match="requires a client certificate"):
            asks(
                caFile=str(ours.own.cert), certFile=str(other.cert), keyFile=str(other.key),
            )  # fmt: skip
        with pytest.raises(BrokerUnreachable, match="a port that expects https"):
            asks(url=url.replace("https", "http"))
        with pytest.raises(BrokerRefused, match="HTTP 401"):
            asks(caFile=str(ours.own.cert), token="no.such.token", **shown)
        with pytest.raises(WrongFile, match="cert_file"):
            asks(caFile=str(ours.own.cert), certFile=os.devnull)


@pytest.mark.spark
@long
def test_a_queue_is_written_landed_and_read_with_certificates_of_both(
    spark: SparkSession, tmp_path: Path
) -> None:
    ours = Authority(tmp_path)
    server, client = ours.sign("localhost"), ours.sign("guest")
    flags = {
        "https_port": "0", "https_verify": "require", "https_ca_file": str(ours.own.cert),
        "https_cert": str(server.cert), "https_key": str(server.key),
    }  # fmt: skip
    with BrokerProcess(tmp_path / "data", **flags) as broker:
        given = {
            "url": f"https://guest:guest@127.0.0.1:{broker.ready['https'][1]}",
            "caFile": str(ours.own.cert), "certFile": str(client.cert),
            "keyFile": str(client.key), "queue": "sealed",
        }  # fmt: skip
        asked = Client(SourceOptions.parse(given).endpoint)
        asked.answer("PUT", "/api/queues/%2F/sealed", {"durable": True})
        rows = spark.range(100).selectExpr("concat('m', id) body")
        rows.write.format("tallymark").options(**given).mode("append").save()
        assert spark.read.format("tallymark").options(**given).load().count() == 100
        stream = spark.readStream.format("tallymark").options(**given, subscription="table").load()
        land(stream, tmp_path / "table").awaitTermination()
        assert spark.read.parquet(str(tmp_path / "table")).count() == 100
        untrusted = {**given, "caFile": ""}
        with pytest.raises(Exception, match=r"NotSecure: .* not accepted: .* caFile"):
            spark.read.format("tallymark").options(**untrusted).load().count()
