/* Items of a store as lines of a list: ds-kvstore ls. */
#ifndef DS_SERVE_STORE_LIST_H
#define DS_SERVE_STORE_LIST_H

#include "base/json.h"
#include "store/item.h"

void store_item_title(struct buf *b);
void store_item_text(struct buf *b, const struct store_item *item, const char *segment, uint64_t offset);
void store_item_json(struct buf *b, const struct store_item *item, const char *segment, uint64_t offset);

#endif
