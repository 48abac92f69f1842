"""The choices and prompts of the end-to-end benchmarks: an agent picks an action."""

from __future__ import annotations

SHORT = (
    "REPLY IGNORE NONE SEND_MESSAGE SEND_EMAIL SEND_TOKEN SEARCH_WEB SEARCH_FILES "
    "SEARCH_MEMORY CREATE_TASK CREATE_EVENT CREATE_NOTE DELETE_TASK DELETE_EVENT "
    "DELETE_NOTE UPDATE_TASK UPDATE_SETTINGS UPDATE_ROLE FOLLOW_ROOM UNFOLLOW_ROOM "
    "MUTE_ROOM UNMUTE_ROOM GENERATE_IMAGE TRANSCRIBE_MEDIA SUMMARIZE_CHAT "
    "CHOOSE_OPTION GET_WEATHER GET_PRICE SWAP_TOKEN TRANSFER_TOKEN"
).split()

LONG = (
    "REPLY_TO_CURRENT_CONVERSATION IGNORE_CURRENT_CONVERSATION "
    "SEND_DIRECT_MESSAGE_TO_USER SEND_PAYMENT_REMINDER_EMAIL "
    "SEND_TOKENS_TO_WALLET_ADDRESS SEARCH_COMPANY_KNOWLEDGE_BASE "
    "SEARCH_LATEST_WORLD_NEWS SEARCH_PRIVATE_FILE_STORAGE "
    "CREATE_REMINDER_FOR_TOMORROW CREATE_CALENDAR_EVENT_FOR_TEAM "
    "CREATE_SHARED_MEETING_NOTES DELETE_CALENDAR_EVENT_FOR_TEAM "
    "DELETE_SHARED_MEETING_NOTES UPDATE_NOTIFICATION_SETTINGS_NOW "
    "UPDATE_USER_ROLE_IN_CHANNEL FOLLOW_DISCUSSION_ROOM_UPDATES "
    "UNFOLLOW_DISCUSSION_ROOM_UPDATES MUTE_DISCUSSION_ROOM_ALERTS "
    "UNMUTE_DISCUSSION_ROOM_ALERTS GENERATE_IMAGE_FROM_DESCRIPTION "
    "TRANSCRIBE_VOICE_RECORDING_FILE SUMMARIZE_RECENT_CONVERSATION "
    "CHOOSE_BETWEEN_SEVERAL_OPTIONS GET_WEATHER_FORECAST_FOR_CITY "
    "GET_CURRENT_PRICE_OF_TOKEN SWAP_TOKENS_ON_EXCHANGE_NOW "
    "ADD_ITEM_TO_SHOPPING_LIST REMOVE_ITEM_FROM_SHOPPING_LIST "
    "EXPORT_MONTHLY_REPORT_AS_SHEET SCHEDULE_FOLLOW_UP_MEETING"
).split()

MESSAGES = (
    "Please email Bob the report",
    "What's the weather in Paris?",
    "remind me to buy milk tomorrow",
    "draw me a cat on a bicycle",
    "stop talking in this channel",
    "what did I tell you last week?",
    "swap 3 SOL to USDC",
    "hi there, how are you?",
    "delete the meeting with Ann on Friday",
    "look up the latest news about Mars",
    "send 5 tokens to Carl",
    "follow the developers room",
    "what is the price of bitcoin?",
    "write down that the door code is 4411",
    "summarize what we said so far",
    "change my notification settings",
    "make Dave an admin",
    "transcribe this voice memo",
    "find the contract pdf",
    "create a task for the release",
    "ignore that",
    "which option is best, A or B?",
    "tell Eve I will be late",
    "mute the general room",
    "unmute the music room",
    "leave the gaming room",
    "paint a sunset over the sea",
    "move the milk task to Monday",
    "remove the note about the code",
    "thanks, bye",
)


def prompt(names: list[str], message: str) -> str:
    """Return the prompt: a system part that all share, a message, an open JSON."""
    return (
        "<|im_start|>system\nYou are an agent. Pick the action. Actions: "
        + ", ".join(names)
        + f"<|im_end|>\n<|im_start|>user\n{message}<|im_end|>\n"
        + '<|im_start|>assistant\n{"action": "'
    )


def grammar(names: list[str]) -> str:
    """Return the GBNF grammar of the same choices, the closing quote included."""
    body = " | ".join(f'"{name}"' for name in names)
    return f'root ::= ( {body} ) "\\""'
