"""A bucket to test with: moto's server speaks S3."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def s3_bucket() -> Iterator[str]:
    """A URL in the bucket of a server on loopback, with ``%s`` where the path goes."""
    from moto.server import ThreadedMotoServer
    from pyarrow.fs import FileSystem

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "somebody")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        try:
            address = f"127.0.0.1:{server.get_host_and_port()[1]}"
            url = f"s3://bucket/%s?endpoint_override={address}&scheme=http&region=us-east-1&allow_bucket_creation=true"
            FileSystem.from_uri(url % "")[0].create_dir("bucket")
            yield url
        finally:
            server.stop()
