# No two types in the headers of core/ have the same name. Two types with one name in one namespace are one type to the
# linker, which mixes up their members.
source "$(dirname "$0")/lib.sh"
while read -r name; do
  fault "$name is defined in $(grep -rlE "^(struct|class|enum class|union) $name( final)?( :.*| *)?\{" core --include='*.h' | sort | paste -sd' '): rename one"
done < <(grep -rhE '^(struct|class|enum class|union) [A-Z][A-Za-z0-9_]*( final)?( :.*| *)?\{' core --include='*.h' |
  sed -E 's/^(struct|class|enum class|union) ([A-Za-z0-9_]+).*/\2/' | sort | uniq -d)
finish
