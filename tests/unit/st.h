/* Reads golden safetensors files for tests: no checks but those that keep a test from lying. */
#ifndef DS_TESTS_ST_H
#define DS_TESTS_ST_H

#include <jansson.h>
#include <stdint.h>

#include "tap.h"

struct st {
	char *bytes, *data;
	json_t *head;
};

/* Bails out without the file. */
TAP_USED static struct st st_open(const char *path)
{
	FILE *f = fopen(path, "rb");
	struct st s = { 0 };
	uint64_t head;
	long size;

	if (!f || fseek(f, 0, SEEK_END) || (size = ftell(f)) < 8 || fseek(f, 0, SEEK_SET))
		tap_bail("cannot open '%s'", path);
	s.bytes = malloc((size_t)size);
	if (!s.bytes || fread(s.bytes, 1, (size_t)size, f) != (size_t)size)
		tap_bail("cannot read '%s'", path);
	fclose(f);
	memcpy(&head, s.bytes, 8);
	s.head = head <= (uint64_t)size - 8 ? json_loadb(s.bytes + 8, head, 0, NULL) : NULL;
	if (!s.head)
		tap_bail("no safetensors file '%s'", path);
	s.data = s.bytes + 8 + head;
	return s;
}

/* A tensor's bytes, copied so that they are aligned (free them), and its size in bytes. */
TAP_USED static void *st_get(const struct st *s, const char *name, size_t *bytes)
{
	json_t *t = json_object_get(s->head, name), *at = json_object_get(t, "data_offsets");
	size_t a = (size_t)json_integer_value(json_array_get(at, 0));
	size_t b = (size_t)json_integer_value(json_array_get(at, 1));
	void *p;

	if (!t || b < a || !(p = malloc(b - a + 1)))
		tap_bail("no tensor '%s'", name);
	memcpy(p, s->data + a, b - a);
	if (bytes)
		*bytes = b - a;
	return p;
}

TAP_USED static void st_close(struct st *s)
{
	json_decref(s->head);
	free(s->bytes);
}

#endif
