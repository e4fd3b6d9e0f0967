#include "serve/store_list.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

void store_item_title(struct buf *b)
{
	buf_printf(b, "%-32s %11s %11s %-20s %-20s segment, offset, what\n", "key", "size", "stored", "at", "expires");
}

static void put_time(struct buf *b, uint64_t ns)
{
	time_t t = (time_t)(ns / 1000000000);
	char text[40] = "-";
	struct tm tm;

	if (ns && gmtime_r(&t, &tm))
		strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
	buf_printf(b, "%-20s", text);
}

void store_item_json(struct buf *b, const struct store_item *item, const char *segment, uint64_t offset)
{
	char hex[STORE_KEY_HEX];
	struct jw w;

	store_key_hex(&item->key, hex);
	jw_init(&w, b);
	jw_obj(&w);
	jw_put_str(&w, "key", hex);
	jw_put_uint(&w, "size", item->size);
	jw_put_uint(&w, "stored", item->stored);
	jw_put_str(&w, "segment", segment);
	jw_put_uint(&w, "offset", offset);
	jw_key(&w, "meta");
	meta_json(&w, item->meta);
	jw_obj_end(&w);
	buf_str(b, "\n");
}

/* Of a value of the Redis front its name, of a block of KV its first token's place and the model. */
static void what(const struct store_item *item, char *text, size_t cap)
{
	uint64_t first, tokens, decoded = UINT64_MAX;
	const uint8_t *bytes;
	char model[80];
	const char *s;
	size_t n;

	*text = 0;
	if (meta_str(item->meta, "name", &s, &n) == META_OK)
		snprintf(text, cap, "%.*s", n < 100 ? (int)n : 100, s);
	else if (meta_bin(item->meta, "name", &bytes, &n) == META_OK)
		snprintf(text, cap, "%.*s", n < 100 ? (int)n : 100, (const char *)bytes);
	else if (meta_uint(item->meta, "first", &first) == META_OK &&
		meta_uint(item->meta, "block", &tokens) == META_OK &&
		meta_uint(item->meta, "decoded", &decoded) != META_TYPE &&
		meta_cstr(item->meta, "model", model, sizeof model) == META_OK)
		snprintf(text, cap, "tokens %" PRIu64 "+%" PRIu64 "%s of %.16s", first, tokens,
			decoded < tokens ? " (generated)" : "", model);
	err_one_line(text);
}

void store_item_text(struct buf *b, const struct store_item *item, const char *segment, uint64_t offset)
{
	char hex[STORE_KEY_HEX], name[200];

	store_key_hex(&item->key, hex);
	what(item, name, sizeof name);
	buf_printf(b, "%s %11" PRIu64 " %11u ", hex, item->size, item->stored);
	put_time(b, item->at_ns);
	buf_printf(b, " ");
	put_time(b, item->expires_ns);
	buf_printf(b, " %s %12" PRIu64 "%s%s\n", segment, offset, *name ? "  " : "", name);
}
