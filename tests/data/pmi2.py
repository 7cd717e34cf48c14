"""A client of PMI2, for the wire protocol over PMI_FD: what each rank puts, all get."""

import os
import socket


def main() -> None:
    """Say the rank, the number of ranks, and what all have put."""
    with socket.socket(fileno=int(os.environ["PMI_FD"])) as sock, sock.makefile("rwb") as file:

        def call(command: str, **fields: object) -> dict[str, str]:
            words = {"cmd": command, **fields}
            text = "".join(f"{name}={value};" for name, value in words.items()).encode()
            file.write(b"%6d%b" % (len(text), text))
            file.flush()
            answer = file.read(int(file.read(6))).decode()
            return dict(pair.split("=", 1) for pair in answer.split(";") if pair)

        file.write(b"cmd=init pmi_version=2 pmi_subversion=0\n")
        file.flush()
        assert b" rc=0 " in file.readline()
        job, rank = os.environ["PMI_JOBID"], os.environ["PMI_RANK"]
        full = call("fullinit", pmijobid=job, pmirank=rank, threaded="FALSE")
        call("kvs-put", key=f"card-{rank}", value=f"of-{rank}")
        call("kvs-fence")
        found = [
            call("kvs-get", jobid=job, srcid=-1, key=f"card-{number}")["value"]
            for number in range(int(full["size"]))
        ]
        print(full["rank"], full["size"], *found)
        call("finalize")


if __name__ == "__main__":
    main()
