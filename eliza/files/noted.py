"""Names of what eliza notes in the files that it writes."""

__all__ = ["ABOUT", "LIST_SAFE", "TOKENIZER"]

#: In the metadata of a `.tflite` file: JSON, and a `tokenizer.json` packed by zlib.
ABOUT = "eliza"
TOKENIZER = "eliza_tokenizer"

#: Put before a chat template. LiteRT-LM hands the content of a message over as a list
#: of parts, where templates expect a text.
LIST_SAFE = (
    "{%- set ns = namespace(messages=[]) -%}{%- for m in messages -%}"
    "{%- if m.content is string -%}{%- set ns.text = m.content -%}{%- else -%}"
    "{%- set ns.text = '' -%}{%- for part in m.content -%}"
    "{%- set ns.text = ns.text ~ part.text -%}{%- endfor -%}{%- endif -%}"
    "{%- set ns.messages = ns.messages + [{'role': m.role, 'content': ns.text}] -%}"
    "{%- endfor -%}{%- set messages = ns.messages -%}"
)
