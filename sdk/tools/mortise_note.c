/* mortise_note PACK.so [KEY=VALUE ...] [--need LIB ...]: prints, as a C file, the metadata note of a freshly built
 * pack.
 *
 * It loads the library once, reads the table of the exported `mortise_pack_v1` (or `mortise_pack_v0`), and writes the same facts as JSON into
 * an ELF note (section .note.mortise, owner "Mortise", type 1), which the build compiles and links in. The host then
 * reads names, parameters and needs without running any code of the pack. KEY=VALUE pairs go into "build", --need
 * LIB into "needs": the libraries beyond the C and C++ runtimes that the pack needs.
 * Needs only libc and libdl. Exit status: 0; 1 if the library cannot be loaded, or if hosts would refuse its table.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mortise/mortise.h"

static char* text;
static size_t text_size, text_capacity;

static void put_bytes(const char* bytes, size_t n) {
  if (text_size + n + 1 > text_capacity) {
    text_capacity = 2 * (text_size + n + 1);
    text = realloc(text, text_capacity);
    if (text == NULL) abort();
  }
  memcpy(text + text_size, bytes, n);
  text_size += n;
  text[text_size] = 0;
}

static void put(const char* format, ...) {
  char line[512];
  va_list args;
  va_start(args, format);
  const int n = vsnprintf(line, sizeof line, format, args);
  va_end(args);
  put_bytes(line, (size_t)n);
}

static void put_string(const char* s) {
  if (s == NULL) {
    put("null");
    return;
  }
  put("\"");
  for (; *s != 0; ++s) {
    const unsigned char c = (unsigned char)*s;
    if (c == '"' || c == '\\') {
      put("\\%c", c);
    } else if (c < 0x20) {
      put("\\u%04x", c);
    } else {
      put_bytes(s, 1);
    }
  }
  put("\"");
}

static void put_names(const char* key, const char* const* names) {
  put(",\"%s\":[", key);
  for (int i = 0; names != NULL && names[i] != NULL; ++i) {
    if (i > 0) put(",");
    put_string(names[i]);
  }
  put("]");
}

/* 0 for a pack of ABI 0.1 and for a role that this SDK does not know. */
static int32_t role_of(const mortise_param* p) {
  return MORTISE_HAS(p, role) && p->role > 0 && p->role <= MORTISE_ROLE_SECRET ? p->role : 0;
}

static void put_param(const mortise_param* p) {
  static const char* const kRoles[] = {"plain", "column", "file", "folder", "model", "secret"};
  static const char* const kTypes[] = {"f64", "i64", "bool", "text"};
  put("{\"name\":");
  put_string(p->name);
  put(",\"type\":\"%s\",\"default\":", p->type >= 0 && p->type < 4 ? kTypes[p->type] : "unknown");
  put_string(p->default_text);
  /* JSON has no infinities, so an open end is omitted */
  if (p->has_range && p->min > -1.7e308) put(",\"min\":%.17g", p->min);
  if (p->has_range && p->max < 1.7e308) put(",\"max\":%.17g", p->max);
  if (p->num_choices > 0) {
    put(",\"choices\":[");
    for (uint32_t i = 0; i < p->num_choices; ++i) {
      if (i > 0) put(",");
      put_string(p->choices[i]);
    }
    put("]");
  }
  if (role_of(p) > 0) put(",\"role\":\"%s\"", kRoles[role_of(p)]);
  put(",\"doc\":");
  put_string(p->doc);
  put("}");
}

/* Reports already in the build what a host would refuse. */

static int refuse(const char* format, ...) {
  va_list args;
  fprintf(stderr, "mortise_note: ");
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fprintf(stderr, "\n");
  return 1;
}

/* [a-z][a-z0-9_]*, and also `more`. Returns its end. */
static const char* end_of_word(const char* s, const char* more) {
  static const char kLetters[] = "abcdefghijklmnopqrstuvwxyz";
  if (*s == 0 || strchr(kLetters, *s) == NULL) return s;
  while (*s != 0 && (strchr(kLetters, *s) != NULL || strchr("0123456789_", *s) != NULL || strchr(more, *s) != NULL))
    ++s;
  return s;
}
static int is_name(const char* s) { return *s != 0 && *end_of_word(s, "") == 0; }
static int is_pack_id(const char* s) {
  for (int words = 1;; ++words) {
    const char* end = end_of_word(s, "-");
    if (end == s) return 0;
    if (*end == 0) return words > 1;
    if (*end != '.') return 0;
    s = end + 1;
  }
}

/* 0: the default is a value that a user might give. */
static int check_default(const char* plugin, const mortise_param* p) {
  const char* text = p->default_text;
  char* end = NULL;
  double number = 0;
  if (text == NULL) return 0;
  if (p->type == MORTISE_PARAM_BOOL && strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
    return refuse("plugin '%s': the default of '%s' is '%s', not true or false", plugin, p->name, text);
  if (p->type == MORTISE_PARAM_TEXT && p->num_choices > 0) {
    for (uint32_t i = 0; i < p->num_choices; ++i)
      if (strcmp(p->choices[i], text) == 0) return 0;
    return refuse("plugin '%s': the default of '%s' is '%s', none of its choices", plugin, p->name, text);
  }
  if (p->type != MORTISE_PARAM_F64 && p->type != MORTISE_PARAM_I64) return 0;
  if (p->type == MORTISE_PARAM_F64 && strcmp(text, "none") == 0) return 0;
  number = p->type == MORTISE_PARAM_F64 ? strtod(text, &end) : (double)strtoll(text, &end, 10);
  if (end == text || *end != 0)
    return refuse("plugin '%s': the default of '%s' is '%s', not %s", plugin, p->name, text,
                  p->type == MORTISE_PARAM_F64 ? "a number" : "an integer");
  if (p->has_range && (number < p->min || number > p->max))
    return refuse("plugin '%s': the default of '%s' is '%s', out of its own range", plugin, p->name, text);
  return 0;
}

static int check_plugin(const mortise_descriptor* d) {
  if (d->kind == NULL || d->name == NULL || d->vtable == NULL)
    return refuse("plugin '%s' is not usable: %s", d->name != NULL ? d->name : "?",
                  d->summary != NULL ? d->summary : "it has no kind, name or vtable");
  if (!is_name(d->name)) return refuse("the plugin name '%s' is not [a-z][a-z0-9_]*", d->name);
  for (uint32_t i = 0; i < d->num_params; ++i) {
    const mortise_param* p = d->params != NULL ? d->params[i] : NULL;
    if (p == NULL || p->name == NULL) return refuse("plugin '%s': parameter %u has no name", d->name, i);
    if (!is_name(p->name))
      return refuse("plugin '%s': the parameter name '%s' is not [a-z][a-z0-9_]*", d->name, p->name);
    for (uint32_t j = 0; j < i; ++j)
      if (strcmp(d->params[j]->name, p->name) == 0)
        return refuse("plugin '%s' has two parameters '%s'", d->name, p->name);
    if (role_of(p) > 0 && p->type != MORTISE_PARAM_TEXT)
      return refuse("plugin '%s': the parameter '%s' has a role, and only texts have one", d->name, p->name);
    if (check_default(d->name, p) != 0) return 1;
  }
  return 0;
}

/* The devices of a plugin with mortise.device/1, by the names of those that have one. */
static void put_devices(const mortise_descriptor* d) {
  const mortise_device* table = NULL;
  int count = 0;
  if (MORTISE_HAS(d, get_extension)) table = d->get_extension(MORTISE_EXT_DEVICE);
  if (table == NULL || table->device_types == NULL) return;
  put(",\"devices\":[");
  for (uint32_t i = 0; i < table->num_device_types; ++i) {
    const int32_t type = table->device_types[i];
    if (type != MORTISE_CPU && type != MORTISE_CUDA) continue;
    put("%s\"%s\"", count++ > 0 ? "," : "", type == MORTISE_CPU ? "cpu" : "cuda");
  }
  put("]");
}

static void put_plugin(const mortise_descriptor* d) {
  static const char* const kCouplings[] = {"token", "row", "group", "update"};
  put("{\"kind\":");
  put_string(d->kind);
  put(",\"name\":");
  put_string(d->name);
  put(",\"summary\":");
  put_string(d->summary);
  put(",\"doc\":");
  put_string(d->doc);
  put(",\"flags\":%u,\"coupling\":\"%s\"", d->flags,
      d->coupling >= 0 && d->coupling < 4 ? kCouplings[d->coupling] : "unknown");
  put_names("requires", d->requires_inputs);
  put_names("consumes", d->consumes);
  if (MORTISE_HAS(d, update_metrics)) put_names("update_metrics", d->update_metrics);
  put_devices(d);
  put(",\"params\":[");
  for (uint32_t i = 0; i < d->num_params; ++i) {
    if (i > 0) put(",");
    put_param(d->params[i]);
  }
  put("]}");
}

static int check_pack(const mortise_pack* pack) {
  if (!is_pack_id(pack->id))
    return refuse("the pack id '%s' is not dotted lower-case words, as in acme.match", pack->id);
  for (uint32_t i = 0; i < pack->num_plugins; ++i) {
    if (check_plugin(pack->plugins[i]) != 0) return 1;
    for (uint32_t j = 0; j < i; ++j) { /* same name */
      const mortise_descriptor *a = pack->plugins[i], *b = pack->plugins[j];
      if (strcmp(a->kind, b->kind) == 0 && strcmp(a->name, b->name) == 0)
        return refuse("two plugins of kind %s are named '%s'", a->kind, a->name);
    }
  }
  return 0;
}

static void put_pack(const mortise_pack* pack, int major, int num_args, char** args) {
  put("{\"abi\":%d,\"abi_minor\":%u,\"min_host_minor\":%u,\"pack\":{\"id\":", major, pack->abi_minor,
      pack->min_host_minor);
  put_string(pack->id);
  put(",\"version\":");
  put_string(pack->version);
  put("},\"plugins\":[");
  for (uint32_t i = 0; i < pack->num_plugins; ++i) {
    if (i > 0) put(",");
    put_plugin(pack->plugins[i]);
  }
  put("],\"needs\":[");
  int count = 0;
  for (int i = 0; i + 1 < num_args; ++i) {
    if (strcmp(args[i], "--need") != 0) continue;
    if (count++ > 0) put(",");
    put_string(args[i + 1]);
  }
  put("],\"build\":{");
  count = 0;
  for (int i = 0; i < num_args; ++i) {
    char* equals = strchr(args[i], '=');
    if (equals == NULL || (i > 0 && strcmp(args[i - 1], "--need") == 0)) continue;
    *equals = 0;
    if (count++ > 0) put(",");
    put_string(args[i]);
    put(":");
    put_string(equals + 1);
    *equals = '=';
  }
  put("}}");
}

static void print_c(const char* path) {
  const size_t size = text_size;
  printf("/* Made by mortise_note from %s: the pack's metadata as an ELF note. */\n", path);
  printf("#include <stdint.h>\n\n");
  printf("__attribute__((section(\".note.mortise\"), used, aligned(4))) static const struct {\n");
  printf("  uint32_t name_size, text_size, type;\n  char name[8];\n  char text[%zu];\n", (size + 3) / 4 * 4);
  printf("} mortise_note = {8, %zu, 1, \"Mortise\",\n  {", size);
  for (size_t i = 0; i < size; ++i) {
    if (i % 24 == 0) printf("\n    ");
    printf("%d,", (signed char)text[i]);
  }
  printf("}};\n");
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: mortise_note PACK.so [KEY=VALUE ...] [--need LIB ...]\n");
    return 1;
  }
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "mortise_note: %s\n", dlerror());
    return 1;
  }
  int major = MORTISE_ABI_MAJOR;
  const mortise_pack* pack = dlsym(library, "mortise_pack_v1");
  if (pack == NULL) { /* a source of ABI 0 */
    major = 0;
    pack = dlsym(library, "mortise_pack_v0");
  }
  if (pack == NULL) {
    fprintf(stderr, "mortise_note: %s does not export mortise_pack_v1; is MORTISE_PACK in one of its sources?\n",
            argv[1]);
    return 1;
  }
  if (pack->struct_size < sizeof(mortise_pack) || pack->num_plugins == 0 || pack->id == NULL || pack->version == NULL) {
    fprintf(stderr, "mortise_note: the pack of %s has no id, version or plugins\n", argv[1]);
    return 1;
  }
  if (check_pack(pack) != 0) return 1;
  put_pack(pack, major, argc - 2, argv + 2);
  print_c(strrchr(argv[1], '/') != NULL ? strrchr(argv[1], '/') + 1 : argv[1]);
  free(text);
  return 0;
}
