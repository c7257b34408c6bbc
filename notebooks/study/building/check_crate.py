"""Validate an RO-Crate and CITATION.cff without a network.

The validators do not resolve next to the book's packages, so ``make check-crate`` runs this program
in an environment of its own. The only file of the network that the validator of RO-Crates reads is
the context of RO-Crate. The package `rocrate` contains it; it is put into the validator's cache.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from requests import Request
from requests_cache import CachedSession
from requests_cache.models import CachedRequest, CachedResponse


def fill_cache(path, context):
    """Put a JSON-LD context into a new cache, as if it had been downloaded from its address.

    Parameters
    ----------
    path : Path
        The cache's path, without the suffix that the cache adds.
    context : Path
        A file with the member ``@id``, the address of the context.
    """
    content = context.read_bytes()
    address = json.loads(content)["@id"]
    headers = {"Content-Type": "application/ld+json"}
    session = CachedSession(cache_name=str(path), expire_after=-1)
    for method in ("GET", "HEAD"):
        response = CachedResponse(
            url=address,
            status_code=200,
            headers=headers,
            content=content if method == "GET" else b"",
            request=CachedRequest(method=method, url=address),
        )
        key = session.cache.create_key(Request(method, address))
        session.cache.save_response(response, cache_key=key)
    session.close()


def main():
    """Run both validators and return the first exit status that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("crate", type=Path)
    parser.add_argument("citation", type=Path, help="CITATION.cff")
    parser.add_argument("context", type=Path, help="ro-crate.jsonld of the package rocrate")
    options = parser.parse_args()
    programs = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        fill_cache(cache, options.context)
        crate = [programs / "rocrate-validator", "--no-interactive", "validate", options.crate]
        crate += ["--offline", "--cache-path", cache, "--no-paging", "--verbose"]
        citation = [programs / "cffconvert", "--validate", "--infile", options.citation]
        codes = [
            subprocess.run(list(map(str, c)), check=False).returncode for c in (crate, citation)
        ]
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main())
