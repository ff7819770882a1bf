#!/usr/bin/env bash
# kafka.sh LIBS: puts the jars of an unmodified Kafka, as integration/kafka/pom.xml names them, into the directory LIBS.
set -euo pipefail
libs=$1
pom=$(dirname "$0")/../integration/kafka/pom.xml

rm -rf "$libs"
mkdir -p "$libs"
libs=$(cd "$libs" && pwd)
for try in 1 2 3; do # a registry that is slow for a moment is no reason to fail
  mvn -q -B -Dstyle.color=never -f "$pom" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$libs" && break
  [ "$try" -lt 3 ] || { echo "maven could not fetch Kafka's jars" >&2; exit 1; }
done
for jar in kafka_2.13 kafka-clients kafka-tools log4j-slf4j-impl; do
  compgen -G "$libs/$jar-*.jar" >/dev/null || { echo "$jar is not among the jars in $libs" >&2; exit 1; }
done
