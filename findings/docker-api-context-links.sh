#!/usr/bin/env bash
# A program in Ruby builds an image of a directory with docker-api: Docker::Image.build_from_dir(DIR). The directory has
# links (current -> release-2, libx.so -> libx.so.2) and an empty directory for data.
#
# One would guess: the context is the directory as it is, as with `docker build`; docker-api keeps .dockerignore, too.
# What happens: only regular files are sent. The link to a directory is gone, and so is the empty directory; the link to
# a file is a second file. `COPY . /app` succeeds, and what goes by /app/current fails when the container runs. A link
# to nothing is an error (ENOENT).
# Seen with ruby-docker-api 2.2.0 and Ruby 3.1.2 of Debian 12.
#
#   DIR: Dockerfile current -> release-2 data/ libx.so -> libx.so.2 libx.so.2 release-2/main
#   sent: - Dockerfile, - libx.so, - libx.so.2, - release-2/main
. "$(dirname "$0")/common.bash" || exit 2
debs ruby-docker-api=2.2.0-1 ruby-excon=0.88.0-1 ruby-multi-json=1.14.1-2 ruby3.1=3.1.7+really3.1.2-0+deb12u1 \
	libruby3.1=3.1.7+really3.1.2-0+deb12u1 ruby-rubygems=3.3.15-2+deb12u1 libyaml-0-2=0.2.5-1
mkdir -p context/release-2 context/data
touch context/{Dockerfile,libx.so.2,release-2/main}
ln -s release-2 context/current
ln -s libx.so.2 context/libx.so
ruby=$place/root/usr/lib/ruby
RUBYLIB=$ruby/3.1.0:$place/root/usr/lib/$(uname -m)-linux-gnu/ruby/3.1.0:$ruby/vendor_ruby
export RUBYLIB=$RUBYLIB:$place/root/usr/share/rubygems-integration/all/gems/excon-0.88.0/lib
cat >program.rb <<'END_OF_PROGRAM'
require "rubygems"
require "rubygems/package"
require "docker"
File.binwrite("sent.tar", Docker::Util.create_dir_tar("context").read)
END_OF_PROGRAM
ruby3.1 --disable-gems program.rb >words 2>&1 || cannot "no context: $(tail -n 1 words)"
tar -tvf sent.tar | awk '{print substr($1, 1, 1), $6, $7, $8}' | sed 's/ *$//' | sort >seen
expect "sent" "- Dockerfile - libx.so - libx.so.2 - release-2/main" "$(xargs <seen)"
