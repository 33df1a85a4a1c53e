"""Pronounce words over HTTP.

python examples/g2p/serve.py [--port 8000] [--model FOLDER]
curl --data-binary $'hello\\nworld' http://127.0.0.1:8000

POST words, one a line; the answer has the phonemes of each word on its line.
"""

from __future__ import annotations

import argparse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import mgpu_ngram as ng

MAX_BYTES = 1 << 20  # of a request


class Service(ThreadingHTTPServer):
    """A server on this machine alone, with the model of a folder; port 0 takes a free port."""

    def __init__(self, folder: Path, port: int):
        super().__init__(("127.0.0.1", port), Handler)
        letters, phonemes = (str(folder / f"{side}.json") for side in ("letters", "phonemes"))
        self.translator = ng.Translator(str(folder / "model.npz"), source_vocab=letters, target_vocab=phonemes)

    def pronounce(self, text: str) -> str:
        """Return a line of phonemes for each line of the text. A line is one word; its spaces and tabs are left out."""
        words = [" ".join("".join(line.split()).lower()) for line in text.removesuffix("\n").split("\n")]
        return "".join(best[0].text + "\n" for best in self.translator.translate(words, beam_size=5))


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Service

    def do_POST(self) -> None:
        """Send the phonemes of the words in the request."""
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal():
            return self.send_error(411, "give the length of the words, Content-Length")
        if int(size) > MAX_BYTES:
            return self.send_error(413, f"{int(size):,} bytes but a request has at most {MAX_BYTES:,}; send fewer")
        try:
            text = self.rfile.read(int(size)).decode()
        except UnicodeDecodeError:
            return self.send_error(400, "the words are not UTF-8; convert them")
        answer = self.server.pronounce(text).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def main() -> None:
    """Serve until the program is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000, help="0: any free one (default: %(default)s)")
    parser.add_argument(
        "--model", type=Path, default=Path(__file__).parent, metavar="FOLDER", help="(default: this one)"
    )
    options = parser.parse_args()
    with Service(options.model, options.port) as service:
        print(f"http://127.0.0.1:{service.server_port}", flush=True)
        service.serve_forever()


if __name__ == "__main__":
    main()
