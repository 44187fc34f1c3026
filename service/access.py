"""Whether keys are asked for, and which: decided once, at the start, from the settings."""

import ipaddress

from service.api_keys import KeyRing
from service.errors import SettingsError
from service.key_file import check_keys, watch_keys
from service.settings import Settings


def open_keys(settings: Settings) -> KeyRing | None:
    """The keys, or None when everybody may do everything.

    Raises:
        SettingsError: the address is not loopback and there are no keys, keys are wanted and there are none, or the
            file is bad.
    """
    has_keys = bool(settings.api_keys) or settings.api_keys_file is not None
    if settings.auth == "off" or (settings.auth == "auto" and not has_keys and is_loopback(settings.host)):
        return None
    if not has_keys:
        place = "--auth on" if settings.auth == "on" else f"--host {settings.host}"
        raise SettingsError(
            f"{place}: there are no API keys; make one with `groundrec keys create --file keys.toml --name me "
            "--scopes admin` and give --api-keys-file keys.toml, or let everybody in with --auth off"
        )
    given, file = settings.api_keys, settings.api_keys_file
    if file is None:
        check_keys(given, "api_keys")
        return KeyRing(lambda: given)
    if given:
        raise SettingsError("api_keys and api_keys_file: give one of the two")
    return KeyRing(watch_keys(file))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
