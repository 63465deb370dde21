# Every folder of the first two levels has a README.md. Deeper folders with generated files or data are described by
# their parents. Every source file begins with a comment that says what it is.
source "$(dirname "$0")/lib.sh"
while read -r folder; do
  if [[ ! -s $folder/README.md ]]; then fault "$folder: has no README.md"; fi
done < <(find . -mindepth 1 -maxdepth 2 -type d ! -path './.*' ! -path './build*' ! -path './runs*' | sed 's|^\./||' | sort)
while read -r file; do
  fault "$file:1: the file does not begin with a comment that says what it is"
done < <(sources | LC_ALL=C xargs -r awk 'FNR == 1 && !/^\/[\/*] ?[^ ]/ { print FILENAME }')
finish
