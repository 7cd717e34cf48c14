#!/usr/bin/env bash
# A service of podman-compose has a tmpfs volume with a mode in base 8, as modes are written: mode: 01777.
#
# One would guess: the tmpfs has mode 1777, as with docker compose; everybody may write there.
# What happens: YAML reads 01777 as a number of base 8, and podman-compose hands it on in base 10, as
# --tmpfs /scratch:mode=1023. The kernel takes it for base 8 again: not even the owner may read the directory. 0755
# becomes 493, which is not even an octal number. mode: "1777", in quotes, is right.
# Seen with podman-compose 1.5.0; what it calls podman with is caught by a script.
#
#   mode: 01777: mode=1023      mode: 0755: mode=493      mode: "1777": mode=1777
. "$(dirname "$0")/common.bash" || exit 2
pips podman-compose==1.5.0
mkdir bin
cat >bin/podman <<END
#!/bin/sh
case "\$1 \$2" in
--version*) echo podman version 4.9.3 ;;
"ps "*) echo [] ;;
*) printf '%s\n' "\$@" >>"$place/words" ;;
esac
END
chmod +x bin/podman
PATH=$place/bin:$PATH
mode() { # MODE: what podman is told of the tmpfs
	cat >compose.yaml <<-END
		services:
		  service:
		    image: localhost/image
		    volumes:
		      - {type: tmpfs, target: /scratch, tmpfs: {mode: $1}}
	END
	rm -f words
	podman-compose up --detach >output 2>&1
	grep '^/scratch' words
}
expect "mode: 01777" /scratch:mode=1023 "$(mode 01777)"
expect "mode: 0755" /scratch:mode=493 "$(mode 0755)"
expect 'mode: "1777"' /scratch:mode=1777 "$(mode '"1777"')"
