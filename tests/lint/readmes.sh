# Every folder of the first two levels has a README.md. Deeper folders with generated files or data are described by
# their parents.
source "$(dirname "$0")/lib.sh"
while read -r folder; do
  if [[ ! -s $folder/README.md ]]; then fault "$folder: has no README.md"; fi
done < <(find . -mindepth 1 -maxdepth 2 -type d ! -path './.*' ! -path './build*' ! -path './runs*' | sed 's|^\./||' | sort)
finish
