#!/usr/bin/env bash
# A log or a layer in gzip has several members: files put together with cat, `gzip >>`, pigz -i, bgzip, eStargz. Perl
# reads it, with the modules that come with it.
#
# One would guess: all of it, as from zcat, busybox, Python and Node.js: members put together are one file, says RFC
# 1952.
# What happens: IO::Uncompress::Gunzip, gunzip() and a handle, and Compress::Zlib's memGunzip give the first member,
# without an error. MultiStream => 1 asks for the others; gzopen of the same Compress::Zlib reads all.
# Seen with perl 5.36.0 of Debian 12.
#
#   two members of 1000 bytes: zcat 2000     gunzip() 1000     handle 1000     memGunzip 1000     gzopen 2000
. "$(dirname "$0")/common.bash" || exit 2
debs perl-base=5.36.0-7+deb12u4 perl-modules-5.36=5.36.0-7+deb12u4 libperl5.36=5.36.0-7+deb12u4
head -c 1000 /dev/zero | gzip >file.gz
head -c 1000 /dev/zero | gzip >>file.gz
cat >program.pl <<'END_OF_PROGRAM'
use strict;
use Compress::Zlib;
use IO::Uncompress::Gunzip qw(gunzip);
my ($part, $all) = ("", "");
my $way = shift;
if ($way eq "gunzip") { gunzip("file.gz" => \$all) or die; }
elsif ($way eq "MultiStream") { gunzip("file.gz" => \$all, MultiStream => 1) or die; }
elsif ($way eq "handle") { my $in = IO::Uncompress::Gunzip->new("file.gz"); $all .= $_ while <$in>; }
elsif ($way eq "gzopen") { my $in = gzopen("file.gz", "rb"); $all .= $part while $in->gzread($part) > 0; }
else { open my $in, "<:raw", "file.gz"; local $/; $all = Compress::Zlib::memGunzip(<$in>); }
print length $all, "\n";
END_OF_PROGRAM
expect "zcat" 2000 "$(zcat file.gz | wc -c)"
expect "gunzip" 1000 "$(perl program.pl gunzip)"
expect "handle" 1000 "$(perl program.pl handle)"
expect "memGunzip" 1000 "$(perl program.pl memGunzip)"
expect "gzopen" 2000 "$(perl program.pl gzopen)"
expect "MultiStream" 2000 "$(perl program.pl MultiStream)"
