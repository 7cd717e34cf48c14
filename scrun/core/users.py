"""Names of users, from a name service which may hang (nsswitch.conf(5))."""

import pwd


def user_name(uid: int, otherwise: str = "{}") -> str:
    """Look up a user's name.

    Args:
        uid: The user's number.
        otherwise: What to call one without an entry; `{}` is the number.
    """
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return otherwise.format(uid)
