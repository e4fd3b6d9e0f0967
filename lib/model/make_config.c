/* The config.json of a model to be made: a given one, changed. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "model/file.h"
#include "model/config_edit.h"
#include "model/make.h"

static void emit(struct jw *w, const json_t *v)
{
	const char *key;
	json_t *item;
	size_t i;

	switch (json_typeof(v)) {
	case JSON_OBJECT:
		jw_obj(w);
		json_object_foreach((json_t *)(uintptr_t)v, key, item) {
			jw_key(w, key);
			emit(w, item);
		}
		jw_obj_end(w);
		break;
	case JSON_ARRAY:
		jw_arr(w);
		json_array_foreach(v, i, item) {
			emit(w, item);
		}
		jw_arr_end(w);
		break;
	case JSON_STRING: jw_strn(w, json_string_value(v), json_string_length(v)); break;
	case JSON_INTEGER: jw_int(w, json_integer_value(v)); break;
	case JSON_REAL: jw_real(w, json_real_value(v)); break;
	case JSON_TRUE: jw_bool(w, true); break;
	case JSON_FALSE: jw_bool(w, false); break;
	default: jw_null(w);
	}
}

/* Deeper than the writer nests. */
static bool too_deep(const json_t *v, int depth)
{
	const char *key;
	json_t *item;
	size_t i;

	if (depth > 24)
		return true;
	json_object_foreach((json_t *)(uintptr_t)v, key, item) {
		if (too_deep(item, depth + 1))
			return true;
	}
	json_array_foreach(v, i, item) {
		if (too_deep(item, depth + 1))
			return true;
	}
	return false;
}

/* One field a line. */
static void emit_file(struct buf *b, const json_t *root)
{
	const char *key, *comma = "";
	json_t *item;

	buf_str(b, "{");
	json_object_foreach((json_t *)(uintptr_t)root, key, item) {
		struct jw w;

		buf_printf(b, "%s\n  ", comma);
		jw_init(&w, b);
		jw_str(&w, key);
		buf_str(b, ": ");
		jw_init(&w, b);
		emit(&w, item);
		comma = ",";
	}
	buf_str(b, "\n}\n");
}

static void set_layers(json_t *root, size_t layers)
{
	json_int_t dense = json_integer_value(json_object_get(root, "first_k_dense_replace"));

	json_object_set_new(root, "num_hidden_layers", json_integer((json_int_t)layers));
	if (dense > (json_int_t)layers)
		json_object_set_new(root, "first_k_dense_replace", json_integer((json_int_t)layers));
}

void config_set_fp8(json_t *root, bool fp8, bool ue8m0)
{
	json_t *q;

	json_object_del(root, "quantization_config");
	if (!fp8)
		return;
	q = json_pack("{s:s, s:s, s:s, s:[i,i]}", "activation_scheme", "dynamic", "fmt", "e4m3", "quant_method", "fp8",
		"weight_block_size", FP8_BLOCK, FP8_BLOCK);
	if (ue8m0)
		json_object_set_new(q, "scale_fmt", json_string("ue8m0"));
	json_object_set_new(root, "quantization_config", q);
}

static void set_dtype(json_t *root, enum dtype type)
{
	const char *name = json_object_get(root, "dtype") ? "dtype" : "torch_dtype"; /* transformers 5 and before */

	json_object_set_new(root, name, json_string(type == DT_F32 ? "float32" : "bfloat16"));
	if (type != DT_F8_E4M3)
		config_set_fp8(root, false, false);
	else if (!json_is_object(json_object_get(root, "quantization_config")))
		config_set_fp8(root, true, false);
}

static int read_like(const char *like, struct text *t, struct ds_err *err)
{
	const char *slash = strrchr(like, '/');
	char *dir;
	struct stat st;
	int rc;

	if (stat(like, &st) == 0 && S_ISDIR(st.st_mode))
		return file_read(like, "config.json", 1 << 24, t, err);
	dir = slash ? strndup(like, slash == like ? 1 : (size_t)(slash - like)) : strdup(".");
	if (!dir)
		return err_nomem(err, strlen(like), "a path");
	rc = file_read(dir, slash ? slash + 1 : like, 1 << 24, t, err);
	free(dir);
	return rc;
}

int config_edit(const char *like, void (*edit)(json_t *root, const void *arg), const void *arg, struct buf *text,
	struct config *c, struct ds_err *err)
{
	struct text t;
	json_error_t je;
	json_t *root;
	int rc = read_like(like, &t, err);

	if (rc)
		return rc;
	root = json_loadb(t.p, t.n, JSON_REJECT_DUPLICATES, &je);
	if (!json_is_object(root) || too_deep(root, 0)) {
		rc = err_set(err, DS_DATA, "cannot use '%s': %s", like,
			root ? "not a JSON object of modest depth" : je.text);
	} else {
		edit(root, arg);
		emit_file(text, root);
		rc = text->nomem ? err_nomem(err, t.n, "the configuration")
				 : config_parse(text->p, text->len, like, c, err);
	}
	json_decref(root);
	file_free(&t);
	return rc;
}

static void edit_shape(json_t *root, const void *arg)
{
	const struct make_options *o = arg;

	if (o->layers)
		set_layers(root, o->layers);
	if (o->dtype != DT_NONE)
		set_dtype(root, o->dtype);
}

int make_config(const struct make_options *o, struct buf *text, struct config *c, struct ds_err *err)
{
	return config_edit(o->like, edit_shape, o, text, c, err);
}
