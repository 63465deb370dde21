# Every folder of the first two levels says in a README.md what is in it. Generated and data folders below that are told by their parents.
source "$(dirname "$0")/lib.sh"
while read -r folder; do
  if [[ ! -s $folder/README.md ]]; then fault "$folder: has no README.md"; fi
done < <(find . -mindepth 1 -maxdepth 2 -type d ! -path './.*' ! -path './build*' ! -path './runs*' | sed 's|^\./||' | sort)
finish
