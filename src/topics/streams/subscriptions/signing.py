"""Signatures of webhooks: Ed25519, so that receivers verify with a public key and no secret is shared.

Webhook-Signature: t=<unix seconds>,kid=<key id>,ed25519=<base64url of the signature of "<t>.<body>">
"""

import hashlib
import hmac
from base64 import urlsafe_b64encode

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SEED_BYTES = 32
_MARK_BYTES = 18


class Signer:
    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self._public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        # Another one than the key that signs, so that nothing said of the one tells anything of the other.
        self._secret = hashlib.sha256(b"topics claims" + seed).digest()
        self.key_id = "ds_" + hashlib.sha256(self._public).hexdigest()[:16]

    def header(self, body: bytes, now_s: int) -> str:
        signature = self._private.sign(b"%d.%b" % (now_s, body))
        return f"t={now_s},kid={self.key_id},ed25519={_b64(signature)}"

    def mark(self, text: str) -> str:
        """A word that only this server can have made of a text."""
        return _b64(hmac.digest(self._secret, text.encode(), "sha256")[:_MARK_BYTES])

    def jwks(self) -> dict[str, object]:
        """The public key, as receivers fetch it."""
        key = {"kty": "OKP", "crv": "Ed25519", "x": _b64(self._public), "kid": self.key_id}
        return {"keys": [{**key, "use": "sig", "alg": "EdDSA"}]}


def _b64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
