#!/bin/sh
# Runs the studies one data seed after the other, each with all its scores, then whole. Run it again to resume.
# Usage, from the repository: evidence/decoder/run.sh
set -eu
here=evidence/decoder
export OMP_NUM_THREADS=1

# Makes of a study one of some of its arms, without questions; the store is the same.
part() {  # study, name, sed's commands
  sed -e "s/^name: .*/name: $2/" -e '/^questions:/,$d' -e "$3" "$here/$1.yaml" > "$here/$2.yaml"
  echo 'questions: []' >> "$here/$2.yaml"
  .venv/bin/biphasic study run "$here/$2.yaml" --workers 1 --quiet
}

part decoder-references decoder-untrained '/phases:/d'
for seed in 0 1 2; do
  for study in decoder decoder-tuned; do
    case $seed in
      0) others='/-seed[12],/d' ;;
      1) others='/name: \(opened\|causal\),/d; /-seed2,/d' ;;
      2) others='/name: \(opened\|causal\),/d; /-seed1,/d' ;;
    esac
    part $study $study-$seed "$others; s/recipe.seed: .*\]/recipe.seed: [$seed]/"
  done
done
for study in decoder decoder-tuned decoder-references; do
  .venv/bin/biphasic study run $here/$study.yaml --workers 1
done
