# Every outside library has its page in third_party_notes/: each package that CMake looks for, each Debian package that ./dev
# installs, each wheel that is pinned.
source "$(dirname "$0")/lib.sh"
pages=$(cat third_party_notes/*.md 2>/dev/null || true)
while read -r name; do
  if [[ ! -s third_party_notes/${name,,}.md ]]; then fault "cmake/MortiseDependencies.cmake: $name has no page third_party_notes/${name,,}.md"; fi
done < <(sed -nE 's/^ *(find_package|pkg_check_modules)\(([A-Za-z0-9_+]+).*/\2/p' cmake/MortiseDependencies.cmake | grep -vxE 'Threads|PkgConfig' | sort -u)
if grep -q libtorch_cpu cmake/MortiseDependencies.cmake && [[ ! -s third_party_notes/torch.md ]]; then fault "cmake/MortiseDependencies.cmake: libtorch has no page third_party_notes/torch.md"; fi
named() {  # named NAME FILE
  grep -qF "\`$1\`" <<<"$pages" || fault "$2: $1 is on no page of third_party_notes/ (written as \`$1\`)"
}
while read -r _ name; do named "$name" apps/dev/apt_packages.txt; done < <(grep -v '^#' apps/dev/apt_packages.txt)
for file in apps/dev/torch_requirements.txt apps/dev/arrow_requirements.txt apps/dev/cudnn_requirements.txt tests/oracles_requirements.txt; do
  while read -r name; do named "$name" "$file"; done < <(sed -nE 's/^([A-Za-z0-9_-]+)==.*/\1/p' "$file")
done
finish
