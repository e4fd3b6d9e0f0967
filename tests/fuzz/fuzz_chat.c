/* Chat templates: a template, and behind a NUL byte perhaps a JSON object of variables.  What is rendered is UTF-8. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char plain[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"S "
	"\\u4f60\"},{\"role\":\"user\",\"content\":\" a, b\\n\"},"
	"{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":\"function\","
	"\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[1,2.5]}}}]}],"
	"\"add_generation_prompt\":true,\"bos_token\":\"<b>\",\"eos_token\":\"<e>\",\"tools\":null,\"n\":3,"
	"\"s\":\"Hello, World\",\"l\":[3,1,2],"
	"\"d\":{\"a\":1,\"b\":{\"c\":\"\\ud83d\\ude00\"}}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *src = (const char *)data, *nul = size ? memchr(src, 0, size) : NULL;
	size_t n = nul ? (size_t)(nul - src) : size, bad;
	json_t *vars = NULL;
	struct ds_err err = { 0 };
	struct buf out = { 0 };
	int rc;

	if (nul)
		vars = json_loadb(nul + 1, size - n - 1, JSON_ALLOW_NUL, NULL);
	if (!json_is_object(vars)) {
		json_decref(vars);
		vars = json_loads(plain, 0, NULL);
	}
	rc = jinja_render(src, n, vars, &out, &err);
	if (rc ? (rc != DS_DATA && rc != DS_OS) || !err.text[0] || strchr(err.text, '\n') : !utf8_valid(out.p ?
		out.p : "", out.len, &bad))
		abort();
	buf_free(&out);
	json_decref(vars);
	return 0;
}
